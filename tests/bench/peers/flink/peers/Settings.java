package peers;

import java.io.IOException;
import java.io.Reader;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;

/** What one run does, from the file that the bench has written. */
public class Settings implements Serializable {
    /** Records that are read at once. */
    public static final int BLOCK = 1_000;

    public final String file;
    public final long records;
    public final long windowRecords;
    public final String reads;
    public final String warehouse;
    public final String table;

    public Settings(String properties) throws IOException {
        Properties read = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(properties))) {
            read.load(reader);
        }
        file = read.getProperty("file");
        records = Long.parseLong(read.getProperty("records"));
        windowRecords = Long.parseLong(read.getProperty("window_records"));
        reads = read.getProperty("reads");
        warehouse = read.getProperty("warehouse");
        table = read.getProperty("table");
    }

    public long blocks() {
        return (records + BLOCK - 1) / BLOCK;
    }
}
