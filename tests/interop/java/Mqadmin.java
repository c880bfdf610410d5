import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * RocketMQ's mqadmin, many commands in one JVM: a line of words separated by tabs, its output and errors, a line that
 * ends it.
 */
public final class Mqadmin {
    private static final String END = "--- end of the command ---";

    public static void main(String[] arguments) throws Exception {
        System.setErr(System.out);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            MQAdminStartup.main0(line.isEmpty() ? new String[0] : line.split("\t"), null);
            System.out.flush();
            System.out.println();
            System.out.println(END);
            System.out.flush();
        }
        System.exit(0);
    }
}
