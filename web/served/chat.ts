// Boots the page of a server: asks for a key where one is needed, lets one choose a model, and shows the conversation.

import { ChatView, type ChatPlace } from "../page/conversation.js";
import { announce, button, h, remembered } from "../page/dom.js";
import { addTools, themeButton } from "../page/shell.js";
import { troubleCard, troubleOf } from "../page/trouble.js";
import { askForKey } from "./key.js";
import { MetricsStrip } from "./metrics.js";
import { ModelServer, ServedModel, ServerError } from "./server.js";

const CHOICE = "pumice-model";
const PLACE: ChatPlace = {
  store: "pumice-chat:server",
  settings: { longest: null, most: { temperature: 2 } },
  welcome: ({ info }) => {
    const does = info.chat ? "Ask it anything." : "It has no chat template: it goes on with your text.";
    return `${info.name} runs on this server. ${does} The conversation is kept in this browser.`;
  },
};

class ServerPage {
  private readonly server = new ModelServer();
  private readonly main = document.getElementById("main") as HTMLElement;
  private readonly keyButton = button("Key", () => void this.changeKey(), { "aria-haspopup": "dialog" });

  async boot(): Promise<void> {
    addTools(themeButton());
    await this.open();
  }

  /** Asks the server for its models until it gives some; what stands in the way is shown. */
  private async open(): Promise<void> {
    try {
      const models = (await this.server.models()).filter((model) => model.generates);
      if (this.server.key) addTools(this.keyButton);
      const first = models.find((model) => model.info.name === remembered.get(CHOICE, "")) ?? models[0];
      if (first) this.show(models, first);
      else this.main.replaceChildren(h("p", { class: "card" }, "This server has no model that generates text."));
    } catch (error) {
      if (error instanceof ServerError && error.status === 401) {
        await askForKey(this.server, this.server.key ? "The server does not know this key." : "");
        return this.open();
      }
      this.main.replaceChildren(troubleCard(troubleOf(error), () => void this.open()));
    }
  }

  private async changeKey(): Promise<void> {
    await askForKey(this.server, "", true);
    announce("The key is kept for this tab");
  }

  private show(models: ServedModel[], first: ServedModel): void {
    const choice = h(
      "select",
      { "aria-label": "Model" },
      models.map(({ info }) => h("option", { value: info.name, selected: info.name === first.info.name }, info.name)),
    );
    const metrics = new MetricsStrip(this.server, () => choice.value);
    this.main.before(metrics.element);
    const view = new ChatView(this.main, first, { ...PLACE, onRunning: (running) => (choice.disabled = running) });
    choice.addEventListener("change", () => {
      const chosen = models.find((model) => model.info.name === choice.value);
      if (!chosen) return;
      remembered.set(CHOICE, chosen.info.name);
      view.use(chosen);
      void metrics.refresh();
      announce(`The next answer is by ${chosen.info.name}`);
    });
    addTools(choice, metrics.toggle);
    document.title = "Chat · Pumice";
    this.main.dataset.ready = "chat";
  }
}

new ServerPage().boot().catch((error: unknown) => {
  document.getElementById("main")?.replaceChildren(h("p", { class: "card trouble", role: "alert" }, String(error)));
  throw error;
});
