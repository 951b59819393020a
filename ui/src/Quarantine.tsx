import type { Run } from "./data";
import { count, counted, moment } from "./words";

/** Input Sets that were set aside, with their errors; the oldest are shown. */
export function Quarantine({ run }: { run: Run }) {
  const all = Object.values(run.quarantine.by_group).reduce((sum, many) => sum + many, 0);
  if (all === 0) return null;
  const shown = run.quarantine.shown;
  return (
    <section aria-label="Quarantine">
      <h2>Quarantine</h2>
      <p className="small">
        {counted(all, "Input Set")} {all === 1 ? "is" : "are"} set aside{shown.length < all ? `; the oldest ${count(shown.length)} are shown` : ""}.
        {run.quarantine.next_step}
        {shown.some((one) => one.input_set === null) && " Their ids are for those who may read the data of this DAG."}
      </p>
      {shown.map((one, index) => (
        <details key={`${one.operator} ${one.slot} ${one.input_set ?? index}`}>
          <summary>
            <strong>{one.operator}</strong>
            {one.slot === null ? "" : ` slot ${one.slot}`} Input Set{one.input_set === null ? "" : ` ${one.input_set}`}: {one.error.split("\n", 1)[0]}
          </summary>
          <p className="small">
            group {one.group}, since {moment(one.since)} UTC
          </p>
          <pre>{one.error}</pre>
        </details>
      ))}
    </section>
  );
}
