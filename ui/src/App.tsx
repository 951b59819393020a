import { useEffect } from "react";
import type { RunList as Listed, Server } from "./data";
import { groupOfTask, type Named, type Place, placeNow, usePlace } from "./place";
import { usePolled } from "./poll";
import { Age, Problem } from "./Problem";
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
const NOWHERE: Place = { run: null, group: null };
const isSame = (one?: Named | null, other?: Named | null) => one?.port === other?.port && one?.event === other?.event;

/** The whole page: a list of runs, or one of them; of one DAG or DAG run, where it is shown inside of it. */
export function App({ server, dagId, dagRunId, taskId, alone = false }: Props) {
  const [place, go] = usePlace();
  const inDagRun = dagRunId !== null;
  const isListed = inDagRun || place.run === null;
  const path = `api/runs${asked(dagId, dagRunId)}`;
  const list = usePolled<Listed>(server, isListed ? path : null, LIST_SECONDS);
  const runs = list.value?.runs ?? null;
  // What the address names is shown, but for a DAG run only if it is one of its runs.
  const named = place.run !== null && (!inDagRun || runs?.some((run) => run.uid === place.run) === true) ? place.run : null;
  // A DAG run has several runs if its DAG has several pipelines or it was begun anew: the newest is shown, of those with the
  // group of the task.
  const ofTask = runs?.find((run) => groupOfTask(taskId, run.groups ?? []) !== null) ?? runs?.[0];
  const here = named === null && inDagRun ? NOWHERE : place;
  const uid = named ?? (inDagRun ? (ofTask?.uid ?? null) : null);

  useEffect(() => {
    if (alone) document.title = uid === null ? "LOG.io" : `LOG.io, run ${uid.slice(0, 8)}`;
  }, [alone, uid]);

  const Frame = alone ? "main" : "div";
  return (
    <Frame className="logio">
      {uid === null ? (
        <>
          <header className="heading">
            <h1>{dagId === null ? "Runs" : `Runs of ${dagId}`}</h1>
            <Age at={list.at} problem={list.problem} />
          </header>
          <Problem problem={list.problem} at={list.at} />
          {list.value !== null && (
            <RunList server={server} path={path} seconds={LIST_SECONDS} listed={list.value} open={(run) => go({ run, group: null })} />
          )}
          {runs === null && list.problem === null && <p role="status">Looking at the log ...</p>}
        </>
      ) : (
        <RunView
          key={uid}
          server={server}
          uid={uid}
          group={here.group}
          taskId={named === null ? taskId : null}
          select={(group) => go({ ...here, run: uid, group })}
          event={here.named ?? null}
          follow={(event) => isSame(event, here.named) || go({ run: uid, group: here.group, named: event })}
          trail={here}
          keep={(trail) => go({ ...placeNow(), ...trail }, true)}
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
