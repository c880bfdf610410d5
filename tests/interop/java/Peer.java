import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * RocketMQ's own client, steered by a test.
 *
 * One JSON command per line on standard input, one JSON answer per line on standard output:
 * {"result": …} or {"error": "…"}. Everything a library prints goes to standard error, so that
 * an answer is never mixed with a log line. The process ends when its input ends.
 *
 * Usage: java Peer NAME_SERVER CLUSTER BROKER_NAME BROKER_ADDRESS
 */
public final class Peer {
    public static void main(String[] arguments) {
        try {
            work(arguments);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // The client's own threads would keep the process alive, and its test waiting.
        }
    }

    private static void work(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        Address address = new Address(arguments[0], arguments[1], arguments[2], arguments[3]);
        Administration administration = new Administration(address);
        Sending sending = new Sending(address);
        Reading reading = new Reading(address);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JSONObject command = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            try {
                answer.put("result", obey(command, administration, sending, reading));
            } catch (Exception error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            answers.println(answer.toJSONString());
        }
        sending.close();
        reading.close();
        administration.close();
    }

    private static Object obey(JSONObject command, Administration administration, Sending sending, Reading reading)
        throws Exception {
        switch (command.getString("op")) {
            case "create_topic":
                return administration.createTopic(command);
            case "query":
                return administration.query(command);
            case "offset_at":
                return administration.offsetAt(command);
            case "view":
                return administration.view(command);
            case "delete_expired":
                return administration.deleteExpired();
            case "bounds":
                return reading.bounds(command);
            case "send":
                return sending.one(command);
            case "send_batch":
                return sending.batch(command);
            case "send_transaction":
                return sending.transaction(command);
            case "read":
                return reading.all(command);
            case "send_back":
                return reading.sendBack(command);
            default:
                throw new IllegalArgumentException("unknown command " + command.getString("op"));
        }
    }
}
