import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** An OpenSearch node on a loopback port: OpenSearch PORT DIRECTORY. */
class OpenSearch extends Node {
    OpenSearch(Settings settings) {
        super(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "foreign"),
            List.of(Netty4Plugin.class), false);
    }

    public static void main(String[] arguments) throws Exception {
        new OpenSearch(Settings.builder()
            .put("path.home", Path.of(arguments[1]))
            .put("network.host", "127.0.0.1")
            .put("http.port", arguments[0])
            .put("transport.port", arguments[2])
            .put("http.type", "netty4")
            .put("transport.type", "netty4")
            .put("discovery.type", "single-node")
            .build()).start();
        new CountDownLatch(1).await();
    }
}
