import { useEffect, useState } from "react";
import type { ListedRun, RunList as Listed, Server } from "./data";
import { type Chosen, Days } from "./Days";
import { usePolled } from "./poll";
import { Problem } from "./Problem";
import { State } from "./State";
import { causesOf, namesOf, STOPPED, Why } from "./Stopped";
import { count, counted, moment, progress, replaced, time } from "./words";

interface Props {
  server: Server;
  /** Where the list comes from. */
  path: string;
  seconds: number;
  listed: Listed;
  open: (uid: string) => void;
}

/** So long a person may stop typing until the server is asked. */
const TYPING_MILLISECONDS = 300;

/** All runs by pipeline, with what has stopped and why. Those that a person looks for may be older than the list. */
export function RunList({ server, path, seconds, listed: { at, runs, older, note, waiting = [] }, open }: Props) {
  const [wanted, setWanted] = useState("");
  const [named, setNamed] = useState("");
  useEffect(() => {
    const timer = window.setTimeout(() => setNamed(wanted), TYPING_MILLISECONDS);
    return () => window.clearTimeout(timer);
  }, [wanted]);
  const asked = older && named !== "" ? `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams({ named })}` : null;
  const byName = usePolled<Listed>(server, asked, seconds);
  const here = runs.filter((run) =>
    `${run.pipeline} ${run.run_id} ${run.dag_id} ${run.condition} ${run.partition ?? ""}`.toLowerCase().includes(wanted.toLowerCase()),
  );
  const further = wanted === named ? (byName.value?.runs ?? []) : [];
  const found = [...new Map<string, ListedRun>([...here, ...further].map((run) => [run.uid, run])).values()];
  if (runs.length === 0 && note !== undefined) {
    return (
      <p role="alert" className="problem">
        {note}
      </p>
    );
  }
  if (runs.length === 0 && waiting.length === 0) {
    return (
      <p className="empty">
        There are no runs yet. A run appears here when its task <code>start_run</code> or <code>logio run</code> has started
        it.
      </p>
    );
  }
  const pipelines = [...new Set(found.map((run) => run.pipeline))];
  return (
    <>
      <label className="filter">
        Show runs with <input value={wanted} maxLength={250} onChange={(event) => setWanted(event.target.value)} type="search" />
      </label>
      <Problem problem={byName.problem} at={byName.at} />
      <Waiting of={waiting.filter((one) => `${one.dag_id} ${one.dag_run_id}`.toLowerCase().includes(wanted.toLowerCase()))} />
      {pipelines.map((pipeline) => (
        <OfPipeline
          key={pipeline}
          server={server}
          pipeline={pipeline}
          runs={found.filter((run) => run.pipeline === pipeline)}
          at={at}
          seconds={seconds}
          open={open}
        />
      ))}
      {older && (
        <p className="small" role="status">
          {wanted === ""
            ? `These are ${count(runs.length)} runs, unfinished ones first, then the newest: older ones are not shown. Look for a part of their names.`
            : wanted !== named || byName.value === null
              ? byName.problem === null && "Looking at older ones ..."
              : `By name, all runs were searched${byName.value?.older ? `, and these are ${count(further.length)} of more` : ""}; by state, the ${count(runs.length)} of the list.`}
        </p>
      )}
    </>
  );
}

interface OfPipelineProps {
  server: Server;
  pipeline: string;
  runs: ListedRun[];
  at: number;
  seconds: number;
  open: (uid: string) => void;
}

/** The runs of a pipeline, and its days, if it has them: of a day that is chosen, the runs are all of that day. */
function OfPipeline({ server, pipeline, runs, at, seconds, open }: OfPipelineProps) {
  const [chosen, choose] = useState<Chosen | null>(null);
  const day = chosen !== null && chosen.first === chosen.last ? chosen.first : null;
  const path = day === null ? null : `api/runs?${new URLSearchParams({ pipeline, partition: day })}`;
  const ofDay = usePolled<Listed>(server, path, seconds);
  const shown = day !== null ? (ofDay.value?.runs ?? []) : chosen === null ? runs : runs.filter(({ partition: key }) => key !== null && key >= chosen.first && key <= chosen.last);
  return (
    <section aria-label={`Runs of pipeline ${pipeline}`}>
      <h2>{pipeline}</h2>
      {runs.some((run) => run.partition !== null) && <Days server={server} pipeline={pipeline} chosen={chosen} choose={choose} />}
      <Problem problem={ofDay.problem} at={ofDay.at} />
      {shown.length > 0 && <Table runs={shown} at={day === null ? at : (ofDay.value?.at ?? at)} open={open} />}
    </section>
  );
}

function Table({ runs, at, open }: { runs: ListedRun[]; at: number; open: (uid: string) => void }) {
  return (
    <table className="runs">
      <thead>
        <tr>
          <th scope="col">run</th>
          <th scope="col">state</th>
          <th scope="col">started (UTC)</th>
          <th scope="col" className="number">duration</th>
          <th scope="col" className="number">done</th>
          <th scope="col">groups</th>
          <th scope="col" className="number">recovered</th>
          <th scope="col">what it waits for</th>
        </tr>
      </thead>
      <tbody>
        {runs.map((run) => (
          <tr key={run.uid}>
            <td>
              <button type="button" className="link" onClick={() => open(run.uid)}>
                {run.run_id}
                {run.generation > 1 ? ` (generation ${run.generation})` : ""}
              </button>
              <div className="small">
                {run.dag_id}
                {run.partition !== null && `, partition ${run.partition}`}
              </div>
            </td>
            <td>
              <State state={run.condition} />
            </td>
            <td>{moment(run.created_at)}</td>
            <td className="number">{time((run.ended_at ?? at) - run.created_at)}</td>
            <td className="number">{progress(run.progress)}</td>
            <td>
              {Object.entries(run.states)
                .map(([state, many]) => `${count(many)} ${state}`)
                .join(", ")}
            </td>
            <td className="number">{count(run.recoveries)}</td>
            <td>
              {causesOf(run.stopped.map((one) => ({ ...one, cause: { said: one.reason, place: one.place } }))).map((one) => (
                <div key={one.groups[0]}>
                  <strong>{namesOf(one)}</strong> {one.state}: <Why cause={one.cause} />
                </div>
              ))}
              {unnamed(run)}
              {replaced(run)}
              {run.next_step && <div className="small">next: {run.next_step}</div>}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** How many groups have stopped that the server has not named: it bounds the list. */
function unnamed({ states, stopped }: ListedRun) {
  const more = STOPPED.reduce((sum, state) => sum + (states[state] ?? 0), -stopped.length);
  return more > 0 && <div>{counted(more, "more group")} stopped</div>;
}

/** DAG runs whose input is not there yet: they have no run in the log. */
function Waiting({ of }: { of: NonNullable<Listed["waiting"]> }) {
  return (
    of.length > 0 && (
      <section aria-label="DAG runs that wait for their input">
        <h2>waiting for input</h2>
        <ul>
          {of.map(({ dag_id, dag_run_id, said }) => (
            <li key={`${dag_id} ${dag_run_id}`}>
              {dag_run_id} <span className="small">{dag_id}</span> {said}
            </li>
          ))}
        </ul>
      </section>
    )
  );
}
