/* chat_file.h - a conversation as a JSON file: {"format": "forerun-chat", "messages": [{"role", "content"}, ...]}. */
#ifndef CHAT_CHAT_FILE_H
#define CHAT_CHAT_FILE_H

#include "cli/chat/chat_turns.h"

/* Writes the conversation up to its last answer, in one moment. Refuses to replace a file that is no conversation. */
int chat_file_save(const ChatTurns *turns, const char *model, const char *path, fr_error *err);
/* Replaces the turns and the system message by those of a file. After a failure they are what they were. */
int chat_file_load(ChatTurns *turns, const char *path, fr_error *err);

#endif
