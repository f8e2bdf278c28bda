/* train_rig.c - files for tests of the command line of training, and runs that are killed and resumed. */
#include "train_rig.h"

#include "random_model.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void train_rig_write(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

bool train_rig_exists(const char *path) { return access(path, F_OK) == 0; }

void train_rig_shell(const char *command) {
    if (system(command) != 0) fail_msg("%s", command);
}

int train_rig_make_files(const char *dir) {
    const RandomModel m = {.arch = "llama",
                           .n_layer = 1,
                           .n_embd = 32,
                           .n_head = 1,
                           .n_head_kv = 1,
                           .n_ff = 32,
                           .n_vocab = 300,
                           .seed = 1};
    char text[20000], path[200];
    snprintf(text, sizeof text, "rm -rf %s && mkdir -p %s", dir, dir);
    train_rig_shell(text);
    size_t n = 0;
    for (int i = 0; i < 200; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "{\"text\": \"the %s %s a %s %d\"}\n", i % 2 ? "cat" : "dog",
                              i % 3 ? "sees" : "hears", i % 5 ? "mouse" : "bird", i);
    snprintf(path, sizeof path, "%s/data.jsonl", dir);
    train_rig_write(path, text);
    snprintf(path, sizeof path, "%s/vocab.gguf", dir);
    return random_model_write(&m, path, NULL);
}

int train_rig_drop_files(const char *dir) {
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

json_t *train_rig_line(const char *path, int i) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char line[8000] = "";
    for (int k = 0; k <= i; k++) assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    json_t *object = json_loads(line, 0, NULL);
    assert_non_null(object);
    return object;
}

pid_t train_rig_start(const char *dir, const char *args) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    /* nohup and shells make background programs ignore some signals, and forerun then ignores them, too */
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], SIG_DFL);
    char command[2000];
    snprintf(command, sizeof command, "exec %s/../forerun %s > /dev/null 2> %s/stderr", cli_rig_folder(), args, dir);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

void train_rig_interrupt(pid_t child, const char *file) {
    for (int i = 0; i < 60000 && !train_rig_exists(file); i++) usleep(1000);
    assert_true(train_rig_exists(file));
    kill(child, SIGINT);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

int train_rig_run_with_kills(const char *dir, const char *args, const char *left, const char *again) {
    char line[2000], show[200];
    snprintf(show, sizeof show, "cat %s/stderr >&2", dir);
    double wait_us = 8000;
    for (int tries = 0;; tries++, wait_us *= 1.3) {
        snprintf(line, sizeof line, "%s %s", args, train_rig_exists(left) ? again : "");
        pid_t child = train_rig_start(dir, line);
        usleep((useconds_t)wait_us);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status)) continue;
        if (WEXITSTATUS(status) != 0) (void)!system(show);
        assert_int_equal(WEXITSTATUS(status), 0);
        return tries;
    }
}
