package paper;

/** What operators send to each other. Flink serializes public fields. */
public class Event {
    public long number;
    public long total;
    public long squares;
    /** Of use case 2: it comes from OP2. */
    public boolean quick;
    public byte[] payload;

    public Event() {}

    public Event(long number, long total, long squares, byte[] payload) {
        this.number = number;
        this.total = total;
        this.squares = squares;
        this.payload = payload;
    }
}
