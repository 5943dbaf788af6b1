import { type Method, type Methods, type ModelEvent } from "./protocol.js";
/** What a call may have beside its arguments. */
export interface CallOptions<M extends Method> {
    onEvent?: ((event: Methods[M]["event"]) => void) | undefined;
    signal?: AbortSignal | undefined;
    /** Buffers that move to the worker. */
    transfer?: Transferable[];
}
/** A call that runs. */
export interface Call<M extends Method> {
    result: Promise<Methods[M]["result"]>;
    send(message: Methods[M]["message"], transfer?: Transferable[]): void;
    /** Asks the worker to end it; what the call gives then is up to its method. */
    cancel(): void;
}
/** A worker and the calls that it has not answered yet. */
export declare class Connection {
    private readonly worker;
    private readonly pending;
    private next;
    private ended;
    onModelEvent: (event: ModelEvent) => void;
    constructor(url?: string | URL);
    /** Calls a method of the worker. */
    call<M extends Method>(method: M, args: Methods[M]["args"], options?: CallOptions<M>): Call<M>;
    /** Ends the worker; calls that it has not answered are rejected. */
    terminate(): void;
    private post;
    private receive;
    private end;
}
