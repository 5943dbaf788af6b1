// Whether the browser's WGSL compiler takes a kernel.

/** A kernel as plan files hold it: its text, and what has to be enabled before it. */
interface Kernel {
  wgsl: string;
  features: string[];
}

let opened: Promise<GPUDevice> | undefined;

async function openDevice(): Promise<GPUDevice> {
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) throw new Error("no adapter");
  const features = (["shader-f16", "subgroups"] as const).filter((f) => adapter.features.has(f));
  return adapter.requestDevice({ requiredFeatures: [...features] });
}

/** For each kernel what the compiler says against it, one line each; "" if it takes it. */
export async function checkKernels(kernels: Kernel[]): Promise<string[]> {
  opened ??= openDevice();
  const device = await opened;
  return Promise.all(
    kernels.map(async ({ wgsl, features }) => {
      const code = features.map((f) => `enable ${f};`).join("") + wgsl;
      device.pushErrorScope("validation");
      const module = device.createShaderModule({ code });
      const [error, info] = await Promise.all([device.popErrorScope(), module.getCompilationInfo()]);
      const lines = info.messages
        .filter((m) => m.type === "error")
        .map((m) => `${m.lineNum}:${m.linePos} ${m.message}`);
      return lines.join("\n") || (error?.message ?? "");
    }),
  );
}
