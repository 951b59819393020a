// Inside Airflow: it shows the default export, `AirflowPlugin`, and gives it what is open there.

import { App } from "./App";
import { Server } from "./data";
import "./style";

interface Given {
  dagId?: string;
  runId?: string;
  taskId?: string;
}

const server = new Server(new URL("logio/", document.baseURI).href, null);

export default function LogioPage({ dagId, runId, taskId }: Given) {
  // Airflow keeps the tab, and this component, when a person goes to another task: what was chosen there is not the choice here.
  const opened = JSON.stringify([dagId, runId, taskId]);
  return <App key={opened} server={server} dagId={dagId ?? null} dagRunId={runId ?? null} taskId={taskId ?? null} />;
}
