// What surrounds every view: the head, notices, light or dark, installing as an app, and offline use with its updates.

import { button, h, remembered } from "./dom.js";

/** Shows a line above the view with an action, until it is dismissed. */
export function notice(text: string, action?: [string, () => void]): void {
  const line = h(
    "div",
    { class: "notice row", role: "status" },
    h("span", {}, text),
    action ? button(action[0], action[1], { class: "main" }) : null,
    button("Dismiss", () => line.remove()),
  );
  document.getElementById("notices")?.append(line);
}

/** Puts buttons into the head, before those that are there. */
export function addTools(...tools: HTMLElement[]): void {
  document.getElementById("tools")?.prepend(...tools);
}

const THEMES = ["auto", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

/** A button that goes from the system's colours to light to dark. */
export function themeButton(): HTMLButtonElement {
  let theme = remembered.get<Theme>("pumice-theme", "auto");
  const set = (): void => {
    document.documentElement.dataset.theme = theme;
    made.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
    made.setAttribute("aria-label", `Colours: ${{ auto: "as the system", light: "light", dark: "dark" }[theme]}`);
  };
  const made = button(
    "",
    () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "auto";
      remembered.set("pumice-theme", theme);
      set();
    },
    { class: "icon" },
  );
  set();
  return made;
}

interface InstallPrompt extends Event {
  prompt(): Promise<unknown>;
}

/** Offers to install the page as an app, where the browser does. */
export function offerInstall(): void {
  let offer: InstallPrompt | null = null;
  const install = button("Install", () => void offer?.prompt().then(() => install.remove()));
  addEventListener("beforeinstallprompt", (event) => {
    event.preventDefault();
    offer = event as InstallPrompt;
    addTools(install);
  });
  addEventListener("appinstalled", () => install.remove());
}

/** Registers the service worker, which keeps the page for offline use, and says when a new version is there. */
export async function keepOffline(): Promise<void> {
  if (!("serviceWorker" in navigator)) return;
  try {
    const registration = await navigator.serviceWorker.register("./sw.js");
    const offer = (): void => {
      // Without a controller it is the first version, not an update.
      const { waiting } = registration;
      if (waiting && navigator.serviceWorker.controller)
        notice("A new version is ready; the next visit has it.", ["Reload now", () => take(waiting)]);
    };
    offer();
    registration.addEventListener("updatefound", () => {
      registration.installing?.addEventListener("statechange", (event) => {
        if ((event.target as ServiceWorker).state === "installed") offer();
      });
    });
  } catch (error) {
    // The page works without it, but not offline: hosts without sw.js, or with scripts of another type.
    console.info("This page cannot be kept for offline use:", error);
  }
}

function take(waiting: ServiceWorker): void {
  navigator.serviceWorker.addEventListener("controllerchange", () => location.reload(), { once: true });
  waiting.postMessage("take over");
}
