// Asks for an API key, which is kept for this tab alone and sent to this server alone.

import { button, field, h } from "../page/dom.js";
import type { ModelServer } from "./server.js";

/** Shows a dialog until a key is given; `cancellable` where the page also works with the one that it has. */
export function askForKey(server: ModelServer, wrong: string, cancellable = false): Promise<void> {
  return new Promise((done) => {
    const box = h("input", {
      type: "password",
      autocomplete: "off",
      autocapitalize: "none",
      spellcheck: "false",
      required: true,
      autofocus: true,
    });
    if (wrong) box.setAttribute("aria-invalid", "true");
    const form = h(
      "form",
      {
        class: "body",
        onsubmit: (event: Event) => {
          event.preventDefault();
          server.key = box.value.trim();
          if (server.key) dialog.close();
        },
      },
      h("h2", { id: "key-title" }, "API key"),
      wrong ? h("p", { role: "alert", class: "wrong" }, wrong) : null,
      field("Key", box, "This server asks for one. This tab keeps it until it is closed."),
      h(
        "div",
        { class: "row" },
        h("button", { type: "submit", class: "main" }, "Use this key"),
        cancellable ? button("Cancel", () => dialog.close()) : null,
      ),
    );
    const dialog = h("dialog", { class: "key", "aria-labelledby": "key-title" }, form);
    if (!cancellable) dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      dialog.remove();
      // Browsers close a dialog at the second Escape, whatever is done about the first.
      if (server.key || cancellable) done();
      else void askForKey(server, wrong).then(done);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
