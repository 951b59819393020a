import { useState } from "react";
import { Confirm, type Done, Field } from "./Confirm";
import { type Option, Refused, type Server } from "./data";
import { counted } from "./words";

const MEANING: Record<Option, string> = {
  "take-over": "It may replace the day that another pipeline, or one of another log, owns (--take-over)",
  empty: "It may leave the day empty although there are rows of before (--empty)",
};

export interface OfDay {
  partition: string;
  uid: string;
  options: Option[];
}

interface Props {
  server: Server;
  pipeline: string;
  days: OfDay[];
  close: () => void;
}

/** Asks before days are computed again. Each run is given up by its uid, so one that has begun meanwhile is left alone. */
export function Again({ server, pipeline, days, close }: Props) {
  const [because, setBecause] = useState("");
  const [allowed, setAllowed] = useState<Option[]>([]);
  const [at, setAt] = useState(0);
  const [first] = days;
  if (first === undefined) return null;
  const many = days.length > 1;
  const named = many ? `${first.partition} to ${days[days.length - 1]?.partition}` : first.partition;
  const offered = (Object.keys(MEANING) as Option[]).filter((option) => days.some((day) => day.options.includes(option)));
  const give = async (): Promise<Done> => {
    const refused: string[] = [];
    let said = "";
    for (const [place, { uid, partition, options }] of days.entries()) {
      setAt(place);
      try {
        const body = { because, allowed: allowed.filter((one) => options.includes(one)), only_stopped: many };
        said = (await server.post<Done>(`api/runs/${uid}/again`, body)).said;
      } catch (error) {
        if (!(error instanceof Refused) || error.status !== 409) throw error;
        refused.push(`${partition}: ${error.message}`);
      }
    }
    if (!many && refused.length > 0) throw new Refused(409, refused[0] ?? "");
    const done = days.length - refused.length;
    return {
      said: many ? `${counted(done, "run")} given up. ${done > 0 ? `Of the last one: ${said}` : ""}` : said,
      warning: refused.length > 0 ? `Left as they are: ${refused.slice(0, 5).join("; ")}${refused.length > 5 ? `; and ${refused.length - 5} more` : ""}` : null,
    };
  };
  return (
    <Confirm title={`Compute ${named} of ${pipeline} again?`} action="Give it up for the next run" run={give} close={close} busy={many ? `${at + 1} of ${days.length} ...` : undefined}>
      <p>
        What {many ? `these ${days.length} runs have` : `run ${first.uid.slice(0, 8)} has`} written stays until the next run of{" "}
        {many ? "each" : named} replaces it. You are told how that begins. {many ? "They stay" : "It stays"} in the list, with
        code and lineage.
      </p>
      <Field name="Why, for those who read the list">
        <input type="text" maxLength={250} value={because} onChange={(event) => setBecause(event.target.value)} />
      </Field>
      {offered.map((option) => (
        <label key={option} className="field check">
          <input
            type="checkbox"
            checked={allowed.includes(option)}
            onChange={(event) => setAllowed(event.target.checked ? [...allowed, option] : allowed.filter((one) => one !== option))}
          />{" "}
          {MEANING[option]}
        </label>
      ))}
    </Confirm>
  );
}
