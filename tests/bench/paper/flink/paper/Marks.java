package paper;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.util.Locale;

/** Files by which operators tell the bench what has happened, and failures that happen once. */
public final class Marks {
    private final Settings settings;
    private final Path folder;

    public Marks(Settings settings) {
        this.settings = settings;
        this.folder = Path.of(settings.folder);
    }

    /** Writes the time into a file, seconds since 1970. False if it was there. */
    public boolean mark(String name) throws IOException {
        try {
            Files.writeString(folder.resolve(name), now(), StandardOpenOption.CREATE_NEW);
            return true;
        } catch (FileAlreadyExistsException there) {
            return false;
        }
    }

    /** An operator is up, perhaps not for the first time. */
    public void opened(String operator) throws IOException {
        Path file = folder.resolve(operator + ".opened");
        Files.writeString(file, now() + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    public void waitForGo() throws InterruptedException {
        while (!Files.exists(folder.resolve("go"))) {
            Thread.sleep(1);
        }
    }

    /** The operator has this many events. Replicas take turns: the first one fails first. */
    public void mayFail(String operator, long counted, int replica, int replicas) throws Exception {
        if (!operator.equals(settings.fails)) {
            return;
        }
        for (int turn = 0; turn < settings.points.length; turn++) {
            if (settings.points[turn] == counted && replica == turn % replicas && mark("killed-" + turn)) {
                killThisProcess();
            }
        }
    }

    public static void sleep(double seconds) throws InterruptedException {
        long nanos = Math.max(0, Math.round(seconds * 1e9));
        Thread.sleep(nanos / 1_000_000, (int) (nanos % 1_000_000));
    }

    /** SIGKILL. Nothing more of this operator is to happen, so the thread stays here. */
    private static void killThisProcess() throws Exception {
        new ProcessBuilder("kill", "-9", Long.toString(ProcessHandle.current().pid())).start();
        Thread.sleep(Long.MAX_VALUE);
    }

    private static String now() {
        Instant now = Instant.now();
        return String.format(Locale.ROOT, "%d.%09d", now.getEpochSecond(), now.getNano());
    }
}
