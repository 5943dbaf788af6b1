/** The runs of a device that wait for the compiler. */
export declare class RunQueue {
    private readonly waiting;
    get isEmpty(): boolean;
    /** Starts a run when its kernels are compiled and all earlier runs were started; gives its result. */
    wait<T>(compiled: Promise<unknown>, start: () => Promise<T>): Promise<T>;
    /** Starts all of them now, before something that has to come after; the device waits for the compiler then. */
    flush(): void;
    private startReady;
}
