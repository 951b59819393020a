/** The server-sent events of an answer as they come: name and data. A browser's own `EventSource` can neither post nor send a token. */
export async function* events(answer: Response): AsyncGenerator<[name: string, data: unknown], void> {
  const reader = answer.body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop()!;
      for (const block of blocks) {
        const [name, data] = block.split("\n");
        yield [name!.slice("event: ".length), JSON.parse(data!.slice("data: ".length))];
      }
    }
  } finally {
    void reader.cancel().catch(() => {}); // it may have broken
  }
}
