// What the lab page offers to Python: `window.lab`. Bytes travel as base64, as Playwright passes JSON.
import * as executables from "./executables";
import { checkKernels } from "./kernels";
import { allocated, facts, runPlans } from "./plans";

declare global {
  interface Window {
    lab: typeof lab;
  }
}

const lab = { allocated, checkKernels, facts, runPlans, ...executables };

window.lab = lab;
