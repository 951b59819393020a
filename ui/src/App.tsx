import { useEffect } from "react";
import type { ListedRun, Server } from "./data";
import { usePolled } from "./poll";
import { usePlace } from "./place";
import { Problem } from "./Problem";
import { RunList } from "./RunList";
import { RunView } from "./RunView";

interface Props {
  server: Server;
  dagId: string | null;
  dagRunId: string | null;
  taskId: string | null;
  alone?: boolean;
}

const LIST_SECONDS = 5;

/** The whole page: a list of runs, or one of them; of one DAG or DAG run, where it is shown inside of it. */
export function App({ server, dagId, dagRunId, taskId, alone = false }: Props) {
  const [place, go] = usePlace();
  const list = usePolled<{ runs: ListedRun[] }>(
    server,
    place.run === null ? `api/runs${asked(dagId, dagRunId)}` : null,
    LIST_SECONDS,
  );
  const runs = list.value?.runs ?? null;
  // A DAG run has one run, or several if its DAG has several pipelines or it was begun anew: the newest is shown.
  const only = dagRunId !== null && runs !== null && runs.length > 0 ? runs[0]!.uid : null;
  const uid = place.run ?? only;

  useEffect(() => {
    if (alone) document.title = uid === null ? "LOG.io" : `LOG.io, run ${uid.slice(0, 8)}`;
  }, [alone, uid]);

  const Frame = alone ? "main" : "div";
  return (
    <Frame className="logio">
      {uid === null ? (
        <>
          <h1>{dagId === null ? "Runs" : `Runs of ${dagId}`}</h1>
          <Problem problem={list.problem} at={list.at} />
          {runs !== null && <RunList runs={runs} open={(run) => go({ run, group: null })} />}
          {runs === null && list.problem === null && <p role="status">Looking at the log ...</p>}
        </>
      ) : (
        <RunView
          key={uid}
          server={server}
          uid={uid}
          group={place.group}
          taskId={taskId}
          select={(group) => go({ run: uid, group })}
          others={dagRunId !== null && runs !== null ? runs : []}
          open={(run) => go({ run, group: null })}
          back={dagRunId === null ? () => go({ run: null, group: null }) : null}
        />
      )}
    </Frame>
  );
}

function asked(dagId: string | null, dagRunId: string | null): string {
  const query = new URLSearchParams();
  if (dagId !== null) query.set("dag_id", dagId);
  if (dagRunId !== null) query.set("dag_run_id", dagRunId);
  return query.size ? `?${query.toString()}` : "";
}
