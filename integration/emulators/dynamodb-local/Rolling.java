import com.amazonaws.services.dynamodbv2.local.main.ServerRunner;
import com.amazonaws.services.dynamodbv2.local.shared.access.LocalDBAccess;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/**
 * DynamoDB Local whose shards roll over when a test says so, and not every four hours alone.
 *
 * <p>Usage: java -cp '...' Rolling.java PORT REQUEST. When the file REQUEST appears, the server closes all open
 * shards by its own means, as it does when they are four hours old, and then removes the file.
 */
public class Rolling {
  public static void main(String[] arguments) throws Exception {
    String[] options = {"-inMemory", "-sharedDb", "-disableTelemetry", "-port", arguments[0]};
    Object server = ServerRunner.createServerFromCommandLineArgs(options);
    server.getClass().getMethod("start").invoke(server);
    Path request = Path.of(arguments[1]);
    while (true) {
      Thread.sleep(20);
      if (Files.exists(request)) {
        roll(server);
        Files.delete(request);
      }
    }
  }

  private static void roll(Object server) throws Exception {
    Object requests = field(field(server, "serverHandler"), "primaryHandler");
    for (Object client : ((Map<?, ?>) field(requests, "dbRequestHandlers")).values()) {
      LocalDBAccess database = (LocalDBAccess) field(client, "dbAccess");
      List<String> tables = database.listTables(null, 100L).getTableNames();
      for (String table : tables) {
        database.findAndRolloverActiveShards(table, 0L);
      }
    }
  }

  private static Object field(Object owner, String name) throws Exception {
    for (Class<?> kind = owner.getClass(); kind != null; kind = kind.getSuperclass()) {
      for (Field field : kind.getDeclaredFields()) {
        if (field.getName().equals(name)) {
          field.setAccessible(true);
          return field.get(owner);
        }
      }
    }
    throw new NoSuchFieldException(owner.getClass() + "." + name);
  }
}
