/* Types of forerun.js; its head explains the binding. */
export interface Message { role: 'system' | 'user' | 'assistant' | string; content: string }
export type Prompt = string | number[] | Message[];
export type Finish = 'running' | 'eos' | 'stop' | 'length' | 'context' | 'cancelled' | 'error';

export interface OpenOptions {
    draft?: string | string[]; nCtx?: number; threads?: number; requests?: number; kv?: 'f16' | 'f32' | 'q8';
    activations?: 'q16' | 'q8'; backend?: 'cpu' | 'reference'; chatTemplate?: string;
}

/* Further fields of fr_sampling and fr_request_options may be named, too. */
export interface GenerateOptions {
    maxTokens?: number; draft?: string | string[]; stop?: string | string[]; temperature?: number; topK?: number;
    topP?: number; minP?: number; repeatPenalty?: number; seed?: number | bigint; treeBudget?: number; verify?: string;
    ignoreEos?: boolean; [field: string]: unknown;
}

export interface Completion { text: string; tokens: number[]; finish: Finish; stats: Record<string, any> }

export class ForerunError extends Error { code: number }

export class Stream implements AsyncIterable<string> {
    [Symbol.asyncIterator](): AsyncGenerator<string>;
    readonly text: string; readonly tokens: number[]; readonly finish: Finish; readonly stats: Record<string, any>;
    close(): Promise<void>;
}

export class Chat {
    messages: Message[];
    stream(text: string, options?: GenerateOptions): AsyncGenerator<string>;
    send(text: string, options?: GenerateOptions): Promise<string>;
}

export class Model {
    static open(path: string, options?: OpenOptions): Promise<Model>;
    readonly info: Record<string, any>;
    tokenize(text: string, options?: { special?: boolean }): number[];
    detokenize(tokens: number[]): string;
    chatTokens(messages: Message[]): number[];
    stream(prompt: Prompt, options?: GenerateOptions): Stream;
    generate(prompt: Prompt, options?: GenerateOptions): Promise<Completion>;
    chat(options?: GenerateOptions & { system?: string }): Chat;
    close(): Promise<void>;
}

export function libraryVersion(): string;
