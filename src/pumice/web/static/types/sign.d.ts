/** The signed receipt, one line, to be saved as it is. Its key is made once, stays in this browser, and cannot be read out. */
export declare function signReceipt(receipt: object): Promise<string>;
/** The public key of this browser, which others trust with `pumice receipt keys trust KEY`. */
export declare function receiptKey(): Promise<string>;
