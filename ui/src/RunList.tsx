import { useState } from "react";
import type { ListedRun } from "./data";
import { State } from "./State";
import { count, moment } from "./words";

/** All runs by pipeline, with what has stopped and why. */
export function RunList({ runs, older, open }: { runs: ListedRun[]; older: boolean; open: (uid: string) => void }) {
  const [wanted, setWanted] = useState("");
  const found = runs.filter((run) =>
    `${run.pipeline} ${run.run_id} ${run.dag_id} ${run.condition}`.toLowerCase().includes(wanted.toLowerCase()),
  );
  if (runs.length === 0) {
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
        Show runs with <input value={wanted} onChange={(event) => setWanted(event.target.value)} type="search" />
      </label>
      {pipelines.map((pipeline) => (
        <section key={pipeline} aria-label={`Runs of pipeline ${pipeline}`}>
          <h2>{pipeline}</h2>
          <div className="scroll" tabIndex={0} role="region" aria-label={`Table of the runs of ${pipeline}`}>
            <table>
              <thead>
                <tr>
                  <th scope="col">run</th>
                  <th scope="col">state</th>
                  <th scope="col">started (UTC)</th>
                  <th scope="col">groups</th>
                  <th scope="col" className="number">recoveries</th>
                  <th scope="col">what it waits for</th>
                </tr>
              </thead>
              <tbody>
                {found
                  .filter((run) => run.pipeline === pipeline)
                  .map((run) => (
                    <tr key={run.uid}>
                      <td>
                        <button type="button" className="link" onClick={() => open(run.uid)}>
                          {run.run_id}
                          {run.generation > 1 ? ` (generation ${run.generation})` : ""}
                        </button>
                        <div className="small">{run.dag_id}</div>
                      </td>
                      <td>
                        <State state={run.condition} />
                      </td>
                      <td>{moment(run.created_at)}</td>
                      <td>
                        {Object.entries(run.states)
                          .map(([state, many]) => `${count(many)} ${state}`)
                          .join(", ")}
                      </td>
                      <td className="number">{count(run.recoveries)}</td>
                      <td className="why">
                        {run.stopped.map((one) => (
                          <div key={one.group}>
                            <strong>{one.group}</strong> {one.state}
                            {one.reason ? `: ${one.reason}` : ""}
                          </div>
                        ))}
                        {run.next_step && <div className="small">next: {run.next_step}</div>}
                      </td>
                    </tr>
                  ))}
              </tbody>
            </table>
          </div>
        </section>
      ))}
      {older && (
        <p className="small">
          These are {count(runs.length)} runs, unfinished ones first, then the newest: older ones are not shown. <code>logio status</code>{" "}
          has more.
        </p>
      )}
    </>
  );
}
