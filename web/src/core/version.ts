/** The version of the runtime, that of the Python package which it comes with. */
export const VERSION = "0.1.0";
