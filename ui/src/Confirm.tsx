import { type FormEvent, type ReactNode, useEffect, useRef, useState } from "react";
import { Refused } from "./data";

export interface Done {
  said: string;
  warning: string | null;
}

interface Props {
  title: string;
  /** What will happen, in sentences. */
  children: ReactNode;
  action: string;
  run: () => Promise<Done>;
  close: () => void;
  /** What is said while it is done. */
  busy?: string;
}

/** A question of the dialog. */
export function Field({ name, children }: { name: string; children: ReactNode }) {
  return (
    <label className="field">
      {name} {children}
    </label>
  );
}

/** Asks before something is done, says what came of it, and gives the focus back to what opened it. */
export function Confirm({ title, children, action, run, close, busy = "Asking ..." }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [opener] = useState(() => document.activeElement);
  const [state, setState] = useState<"asked" | "busy" | "done">("asked");
  const [done, setDone] = useState<Done | null>(null);
  const [refused, setRefused] = useState<string | null>(null);
  useEffect(() => {
    dialog.current?.showModal();
    return () => {
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
    };
  }, [opener]);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setState("busy");
    setRefused(null);
    try {
      setDone(await run());
      setState("done");
    } catch (error) {
      setRefused(error instanceof Refused ? error.message : String(error));
      setState("asked");
    }
  };
  return (
    <dialog
      ref={dialog}
      className="confirm"
      aria-labelledby="logio-confirm"
      // The browser would give the focus back first and tell of it later: a press of Enter between the two would be lost.
      onCancel={(event) => {
        event.preventDefault();
        close();
      }}
      onClose={close}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <form onSubmit={submit}>
        <h2 id="logio-confirm">{title}</h2>
        {children}
        <div role="status">
          {state === "busy" && <p>{busy}</p>}
          {done !== null && <p className="said">{done.said}</p>}
          {done?.warning && <p className="problem">{done.warning}</p>}
        </div>
        <div role="alert">{refused !== null && <p className="problem">{refused}</p>}</div>
        <p className="choices">
          <button type="button" className="choice" onClick={close}>
            {state === "done" ? "Close" : "Cancel"}
          </button>
          {state !== "done" && (
            <button type="submit" className="choice does" disabled={state === "busy"}>
              {action}
            </button>
          )}
        </p>
      </form>
    </dialog>
  );
}
