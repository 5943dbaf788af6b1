// The page is isolated from other origins. The runtime stays the modules that it is made of: its worker is one of them.
const headers = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};

export default {
  base: "./",
  server: { headers },
  preview: { headers },
  worker: { format: "es" },
  optimizeDeps: { exclude: ["@pumice/web"] },
};
