// What the tests in Node see of the runtime: the parts that need no GPU.
export { convert, fromF16, fromBf16, fromNumbers, toBf16, toF16 } from "../../../web/src/core/arrays";
export { evaluate, exprText } from "../../../web/src/core/dims";
export { PumiceError } from "../../../web/src/core/errors";
export { canonical, floatText, JsonFloat, parseCanonical } from "../../../web/src/core/json";
export { unmetNeeds } from "../../../web/src/gpu/device";
export { foldGrid } from "../../../web/src/gpu/grids";
export { readPlan } from "../../../web/src/plan/file";
export { openFrame } from "../../../web/src/plan/frame";
export { InputCheck } from "../../../web/src/plan/inputs";
export { Sizes } from "../../../web/src/plan/sizes";
