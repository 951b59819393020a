import { useCallback, useMemo, useRef } from "react";
import { RunActions } from "./Actions";
import type { ListedRun, Rights, Run, Server } from "./data";
import { Graph } from "./Graph";
import { GroupTable } from "./GroupTable";
import { History } from "./History";
import { Lineage } from "./Lineage";
import { groupOfTask, type Named, type Trail } from "./place";
import { usePolled } from "./poll";
import { Age, Problem, Warnings } from "./Problem";
import { Quarantine } from "./Quarantine";
import { SidePanel } from "./SidePanel";
import { State } from "./State";
import { Stopped } from "./Stopped";
import { useTrails } from "./trails";
import { moment, progress, replaced, seconds, time } from "./words";

const LOOK_SECONDS = 2;
const ENDED_SECONDS = 15;
const RIGHTS_SECONDS = 60;

interface Props {
  server: Server;
  uid: string;
  group: string | null;
  /** The task whose group is shown first: once something was chosen, the address names it. */
  taskId: string | null;
  select: (group: string | null) => void;
  /** The event whose lineage is shown. */
  event: Named | null;
  follow: (event: Named | null) => void;
  trail: Trail;
  keep: (trail: Trail) => void;
  others: ListedRun[];
  open: (uid: string) => void;
  back: (() => void) | null;
}

/** One run: its graph, its groups, what has happened, and one group beside them. */
export function RunView({ server, uid, group, taskId, select, event, follow, trail, keep, others, open, back }: Props) {
  const look = usePolled<Run>(server, `api/runs/${uid}`, LOOK_SECONDS);
  const asked = usePolled<Rights>(server, `api/runs/${uid}/rights`, RIGHTS_SECONDS);
  const rights = asked.value;
  const run = look.value;
  const trails = useTrails(run);
  const names = useMemo(() => (run === null ? [] : [...run.groups, ...run.wholes].map((one) => one.name)), [run]);
  const shown = group ?? groupOfTask(taskId, names);
  // What opened the panel gets the focus back; within the panel another group may be chosen.
  const opener = useRef<Element | null>(null);
  const choose = useCallback(
    (name: string | null) => {
      if (document.activeElement?.closest(".panel") === null) opener.current = document.activeElement;
      select(name);
    },
    [select],
  );
  const close = useCallback(() => {
    select(null);
    if (opener.current instanceof HTMLElement) opener.current.focus();
  }, [select]);

  if (run === null) {
    return (
      <>
        <Back back={back} />
        <h1>Run {uid.slice(0, 8)}</h1>
        <Problem problem={look.problem} at={look.at} />
        {look.problem === null && <p role="status">Looking at the log ...</p>}
      </>
    );
  }
  return (
    <>
      <Back back={back} />
      <header className="heading">
        <h1>
          {run.pipeline} <span className="small">{run.run_id}</span>
        </h1>
        <State state={run.condition} />
        <span className="small">
          DAG {run.dag_id}, run {run.uid.slice(0, 8)},{run.partition !== null && ` partition ${run.partition},`} started {moment(run.created_at)} UTC,{" "}
          {run.ended_at === null ? `for ${time(run.at - run.created_at)}` : `took ${time(run.ended_at - run.created_at)}`}
          {run.progress !== null && `, ${progress(run.progress)} done`}
          {run.supervision.last_look_by !== null && !run.ended
            ? `, supervised by ${run.supervision.last_look_by} (${seconds(run.supervision.last_look_seconds_ago)} ago)`
            : ""}
        </span>
        <Age at={look.at} problem={look.problem} />
        <RunActions server={server} run={run} rights={rights} />
        {others.length > 1 && (
          <label className="small">
            Run of this DAG run{" "}
            <select value={uid} onChange={(event) => open(event.target.value)}>
              {others.map((one) => (
                <option key={one.uid} value={one.uid}>
                  {one.pipeline}, generation {one.generation}
                </option>
              ))}
            </select>
          </label>
        )}
      </header>
      <Problem problem={look.problem} at={look.at} />
      {asked.problem !== null && rights === null && (
        <p role="alert" className="problem">
          What you may do with this run is not known, so there are no buttons: {asked.problem.message}. It is asked again each minute.
        </p>
      )}
      <Stopped run={run} select={choose} />
      <Warnings warnings={run.warnings} />
      {replaced(run) !== "" && <p className="next">This run was {run.superseded_by === null && "given up: "}{replaced(run)}</p>}
      {run.next_step && <p className="next">Next: {run.next_step}</p>}
      <div className={shown === null ? "columns" : "columns with-panel"}>
        <Graph run={run} selected={shown} select={choose} />
        <div className="below">
          <GroupTable run={run} trails={trails} selected={shown} select={choose} />
          <Quarantine run={run} />
          <Lineage server={server} uid={uid} rights={rights} named={event} open={follow} trail={trail} keep={keep} />
          <History run={run} select={choose} />
        </div>
        {shown !== null && (
          <SidePanel
            key={shown}
            server={server}
            run={run}
            rights={rights}
            group={shown}
            close={close}
            select={choose}
            every={run.ended ? ENDED_SECONDS : LOOK_SECONDS}
          />
        )}
      </div>
    </>
  );
}

function Back({ back }: { back: (() => void) | null }) {
  return back === null ? null : (
    <button type="button" className="link back" onClick={back}>
      ← All runs
    </button>
  );
}
