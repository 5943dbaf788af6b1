import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <App url={new URL("./model/", document.baseURI).href} />
  </StrictMode>,
);
