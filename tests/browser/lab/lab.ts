// What the lab page offers to Python: `window.lab`. Bytes travel as base64, as Playwright passes JSON.
import { checkKernels } from "./kernels";

declare global {
  interface Window {
    lab: typeof lab;
  }
}

const lab = { checkKernels };

window.lab = lab;
