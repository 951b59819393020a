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
  return <App server={server} dagId={dagId ?? null} dagRunId={runId ?? null} taskId={taskId ?? null} />;
}
