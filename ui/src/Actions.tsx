import { useState } from "react";
import { Again } from "./Again";
import { Confirm, type Done, Field } from "./Confirm";
import type { Group, Rights, Run, Server, Whole } from "./data";
import { STOPPED } from "./Stopped";
import { count, counted } from "./words";

interface Props {
  server: Server;
  run: Run;
  rights: Rights | null;
}

type Asked = "stop" | "drain" | "retry" | "scale" | "give_up" | "again";

/** Seconds after which the tasks of a run have begun, or need a person. */
const BEGUN = 60;
const FINISHED = new Set(["finished", "retired"]);
const ENDED = new Set(["parked", "halted", "finished", "retired"]);

/** A group that was never launched has no task, or one that has failed before: a retry says which. */
const isStartable = (run: Run, { state }: { state: string }) =>
  STOPPED.includes(state) || (state === "new" && run.at - run.created_at > BEGUN);

/** What a person may do to a whole run. Nothing is shown to those who may only look. */
export function RunActions({ server, run, rights }: Props) {
  const [asked, ask] = useState<Asked | null>(null);
  const isOver = run.state === "superseded";
  // A group that is scaled to zero sleeps: it has slots that are not done.
  const allFinished = run.groups.every((one) => FINISHED.has(one.state)) && run.wholes.every((one) => one.slots_done === one.slots);
  const hasFinished = run.state === "finished" || allFinished;
  // What came of giving it up is read to the end, also when the next look finds it given up.
  if (rights?.change !== true || (isOver && asked === null)) return null;
  const alive = run.groups.filter((one) => !ENDED.has(one.state));
  const stopped = run.groups.filter((one) => isStartable(run, one));
  const act = (body: object = {}) => server.post<Done>(`api/runs/${run.uid}/${asked}`, body);
  const close = () => ask(null);
  return (
    <div className="actions" role="group" aria-label="What can be done with the run">
      {alive.length > 0 && <Action name="Drain ..." open={() => ask("drain")} />}
      {alive.length > 0 && <Action name="Stop ..." open={() => ask("stop")} />}
      {rights.retry !== null && !isOver && (stopped.length > 0 || (rights.puts_back && run.condition.includes("quarantine"))) && <Action name="Retry ..." open={() => ask("retry")} />}
      {!isOver && !hasFinished && <Action name="Give up ..." open={() => ask("give_up")} />}
      {!isOver && (hasFinished || alive.length === 0) && run.partition !== null && <Action name="Compute again ..." open={() => ask("again")} />}
      {asked === "again" && run.partition !== null && (
        <Again server={server} pipeline={run.pipeline} days={[{ partition: run.partition, uid: run.uid, options: run.options }]} close={close} />
      )}
      {asked === "drain" && (
        <Confirm title={`Drain the run of ${run.pipeline}?`} action="Drain it" run={act} close={close}>
          <p>
            Its sources stop reading. What they have read is processed to the end, and the run finishes with an exact result. This
            cannot be taken back.
          </p>
        </Confirm>
      )}
      {asked === "stop" && (
        <Confirm title={`Stop the run of ${run.pipeline}?`} action="Stop it" run={act} close={close}>
          <p>
            {counted(alive.length, "group")} ({names(alive)}): drivers commit what they have, and end.
            Nothing is lost; a retry resumes it. A driver that does not obey is refused by the log from then on.
          </p>
        </Confirm>
      )}
      {asked === "retry" && (
        <Confirm title={`Retry what has stopped in the run of ${run.pipeline}?`} action="Retry" run={act} close={close}>
          {stopped.length > 0 && <p>Not running: {names(stopped)}.</p>}
          <p>{rights.retry}</p>
        </Confirm>
      )}
      {asked === "give_up" && (
        <Confirm title={`Give up the run of ${run.pipeline}?`} action="Give it up" run={act} close={close}>
          <p>
            {alive.length > 0 && `Its drivers are halted first (${names(alive)}). `}
            Run {run.uid.slice(0, 8)} then never resumes, and the same DAG run, or run id, can start over from nothing. Its lineage
            stays until the log is cleaned up. This cannot be taken back.
          </p>
        </Confirm>
      )}
    </div>
  );
}

/** What a person may do to one group. */
export function GroupActions({ server, run, rights, group, whole }: Props & { group: Group | Whole; whole: boolean }) {
  const [asked, ask] = useState<Asked | null>(null);
  const [replicas, setReplicas] = useState("");
  const [reason, setReason] = useState("");
  if (rights?.change !== true || run.state === "superseded") return null;
  const act = (more: object = {}) => server.post<Done>(`api/runs/${run.uid}/${asked}`, { group: group.name, ...more });
  const close = () => ask(null);
  const isAlive = !ENDED.has(group.state);
  const most = "most" in group ? group.most : 0;
  const now = "replicas_in_use" in group ? group.replicas_in_use : 0;
  return (
    <div className="actions" role="group" aria-label={`What can be done with group ${group.name}`}>
      {whole && !run.ended && (
        <Action
          name="Scale ..."
          open={() => {
            setReplicas(String(now));
            ask("scale");
          }}
        />
      )}
      {isAlive && <Action name="Stop ..." open={() => ask("stop")} />}
      {rights.retry !== null && !whole && isStartable(run, group) && <Action name="Retry ..." open={() => ask("retry")} />}
      {asked === "scale" && (
        <Confirm
          title={`Scale group ${group.name}?`}
          action="Scale it"
          run={() => act({ replicas: Number(replicas), reason })}
          close={close}
        >
          <p>
            It has {now} of at most {counted(most, "replica")} in use. New ones are launched first, and get a share of the work when they are ready;
            those that leave give up their work first. The other groups keep running.
          </p>
          <Field name="Replicas">
            <input type="number" min={0} max={most} required value={replicas} onChange={(event) => setReplicas(event.target.value)} />
          </Field>
          <Field name="Reason, for those who read the history">
            <input type="text" maxLength={250} value={reason} onChange={(event) => setReason(event.target.value)} />
          </Field>
        </Confirm>
      )}
      {asked === "stop" && (
        <Confirm title={`Stop group ${group.name}?`} action="Stop it" run={act} close={close}>
          <p>
            {whole ? "The drivers of its replicas commit what they have, and end." : "Its driver commits what it has, and ends."} Events
            wait for it until it is retried. The other groups keep running.
          </p>
        </Confirm>
      )}
      {asked === "retry" && (
        <Confirm title={`Retry group ${group.name}?`} action="Retry" run={act} close={close}>
          <p>{rights.retry}</p>
        </Confirm>
      )}
    </div>
  );
}

function Action({ name, open }: { name: string; open: () => void }) {
  return (
    <button type="button" className="choice" aria-haspopup="dialog" onClick={open}>
      {name}
    </button>
  );
}

function names(groups: Group[]): string {
  const shown = groups.slice(0, 5).map((one) => one.name);
  return groups.length > shown.length ? `${shown.join(", ")} and ${count(groups.length - shown.length)} more` : shown.join(", ");
}
