package paper;

import java.io.IOException;
import java.io.Reader;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Properties;

/** What one run does, from the file that the bench has written. */
public class Settings implements Serializable {
    public final String shape;
    public final int events;
    public final int eventBytes;
    public final int trigger;
    public final int op2Trigger;
    public final int end;
    public final double every;
    public final double op2Seconds;
    public final double op3Seconds;
    public final String fails;
    public final int[] points;
    public final String folder;
    public final String warehouse;

    public Settings(String file) throws IOException {
        Properties read = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(file))) {
            read.load(reader);
        }
        shape = read.getProperty("shape");
        events = Integer.parseInt(read.getProperty("events"));
        eventBytes = Integer.parseInt(read.getProperty("event_bytes"));
        trigger = Integer.parseInt(read.getProperty("trigger"));
        op2Trigger = Integer.parseInt(read.getProperty("op2_trigger"));
        end = Integer.parseInt(read.getProperty("end"));
        every = Double.parseDouble(read.getProperty("every"));
        op2Seconds = Double.parseDouble(read.getProperty("op2_seconds"));
        op3Seconds = Double.parseDouble(read.getProperty("op3_seconds"));
        fails = read.getProperty("fails");
        String listed = read.getProperty("points");
        points = listed.isEmpty() ? new int[0] : Arrays.stream(listed.split(",")).mapToInt(Integer::parseInt).toArray();
        folder = read.getProperty("folder");
        warehouse = read.getProperty("warehouse");
    }
}
