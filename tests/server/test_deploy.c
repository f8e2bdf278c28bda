/* test_deploy.c - the files of deploy/ fit the program: the unit, the Kubernetes files, the dashboard. haproxy.cfg has
 * a test of its own (test_serve_replicas.c). */
#include "serve_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void need(const char *command, const char *what) {
    if (system(command) == 0) return;
    print_message("skipped: no %s\n", what);
    skip();
}

/* Runs a script of Python, which ends with an exception where something is wrong. Its arguments are the program and one
 * more, which may be "". */
static void run_python(const char *script, const char *name, const char *argument) {
    char path[700], command[2400];
    need("python3 -c 'import yaml' 2>/dev/null", "python3 with PyYAML");
    snprintf(path, sizeof path, "%s/%s.py", serve_rig_folder(), name);
    FILE *f = fopen(path, "w");
    fputs(script, f);
    fclose(f);
    snprintf(command, sizeof command, "python3 %s %s/../forerun %s", path, serve_rig_folder(), argument);
    assert_int_equal(system(command), 0);
}

static char *read_file(const char *path) {
    char *text = calloc(1, 1 << 18);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot be opened", path);
    (void)!fread(text, 1, (1 << 18) - 1, f);
    fclose(f);
    return text;
}

/* ---- systemd ----------------------------------------------------------------------------------------------- */

/* Writes the unit with the path of our program, which systemd-analyze requires to exist. Both are in a folder whose
 * path has no spaces, which a unit would have to quote. */
static void the_unit_is_valid_and_confined(void **state) {
    (void)state;
    char command[4096], folder[] = "/tmp/forerun-unit-XXXXXX", link[64];
    char *program = realpath(serve_rig_folder(), NULL);
    need("command -v systemd-analyze >/dev/null 2>&1", "systemd-analyze");
    assert_non_null(program);
    assert_non_null(mkdtemp(folder));
    snprintf(link, sizeof link, "%s/forerun", folder);
    snprintf(command, sizeof command, "%s/../forerun", program);
    assert_int_equal(symlink(command, link), 0);
    snprintf(command, sizeof command,
             "sed -e 's|/usr/bin/forerun|%s|' -e '/^Documentation=/d' deploy/forerun.service > %s/forerun.service",
             link, folder);
    int made = system(command);
    snprintf(command, sizeof command, "systemd-analyze verify %s/forerun.service 2>&1 | grep forerun", folder);
    int complained = system(command);
    snprintf(command, sizeof command,
             "systemd-analyze security --offline=yes --threshold=15 %s/forerun.service >%s/security.txt 2>&1 || "
             "{ cat %s/security.txt; false; }",
             folder, folder, folder);
    int exposed = system(command);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    free(program);
    assert_int_equal(made, 0);
    if (complained == 0) fail_msg("systemd-analyze verify is not silent");
    if (exposed != 0) fail_msg("the exposure is above 1.5");
}

/* The server accepts the arguments of the default file. The model is missing here, otherwise the server would run. */
static void the_default_options_are_understood(void **state) {
    (void)state;
    assert_int_equal(system("test \"$(. deploy/forerun.default; echo $FORERUN_OPTIONS | cut -c1-3)\" = '-m '"), 0);
    char command[1024];
    snprintf(command, sizeof command,
             "(. deploy/forerun.default; timeout 60 %s/../forerun serve $FORERUN_OPTIONS -m none.gguf 2>&1) | "
             "grep -Eq 'gguf.*(exist|cannot|No such)'",
             serve_rig_folder());
    assert_int_equal(system(command), 0);
}

/* ---- Kubernetes --------------------------------------------------------------------------------------------- */

static const char check_yaml[] =
    "import yaml, re, subprocess, sys\n"
    "docs = list(yaml.safe_load_all(open('deploy/kubernetes.yaml')))\n"
    "kinds = {d['kind']: d for d in docs}\n"
    "assert set(kinds) == {'Deployment', 'Service', 'PodDisruptionBudget'}, kinds.keys()\n"
    "pod = kinds['Deployment']['spec']['template']\n"
    "labels = pod['metadata']['labels']\n"
    "assert kinds['Deployment']['spec']['selector']['matchLabels'] == labels\n"
    "assert kinds['Service']['spec']['selector'] == labels\n"
    "assert kinds['PodDisruptionBudget']['spec']['selector']['matchLabels'] == labels\n"
    "serve, pull = pod['spec']['containers'][0], pod['spec']['initContainers'][0]\n"
    "assert pull['args'][0] == 'pull' and '--model=' + pull['args'][1] in serve['args']\n"
    "volumes = {v['name'] for v in pod['spec']['volumes']}\n"
    "ports = {p['name']: p['containerPort'] for p in serve['ports']}\n"
    "assert '--port=%d' % ports['http'] in serve['args']\n"
    "for c in (serve, pull):\n"
    "    assert {m['name'] for m in c['volumeMounts']} <= volumes\n"
    "    s = c['securityContext']\n"
    "    assert s['readOnlyRootFilesystem'] and not s['allowPrivilegeEscalation'] and s['capabilities']['drop'] == "
    "['ALL']\n"
    "for p in ('startupProbe', 'readinessProbe'):\n"
    "    assert serve[p]['httpGet'] == {'path': '/health', 'port': 'http'}\n"
    "help = subprocess.run([sys.argv[1], 'serve', '--help-all'], capture_output=True, text=True).stdout\n"
    "for a in serve['args'][1:]:\n"
    "    assert re.search(r'(?<![\\w-])' + a.split('=')[0] + r'(?![\\w-])', help), a\n";

static void the_kubernetes_files_fit_the_program(void **state) {
    (void)state;
    run_python(check_yaml, "check_yaml", "");
}

/* The files for the inference extension of the Gateway API, and for LeaderWorkerSets, whose pods are those of
 * kubernetes.yaml but for the key. */
static const char check_gateway[] =
    "import yaml, re, subprocess, sys\n"
    "load = lambda name: {d['kind']: d for d in yaml.safe_load_all(open('deploy/' + name))}\n"
    "pool, config = load('endpoint-picker.yaml')['InferencePool'], load('endpoint-picker.yaml')['ConfigMap']\n"
    "group = load('leaderworkerset.yaml')['LeaderWorkerSet']['spec']['leaderWorkerTemplate']\n"
    "deployed = load('kubernetes.yaml')['Deployment']['spec']['template']\n"
    "pod = group['workerTemplate']\n"
    "assert group['size'] == 1\n"
    "for p in (pod, deployed): assert p['metadata']['labels'] == pool['spec']['selector']['matchLabels']\n"
    "serve, other = pod['spec']['containers'][0], deployed['spec']['containers'][0]\n"
    "assert pod['spec']['initContainers'] == deployed['spec']['initContainers']\n"
    "assert [a for a in serve['args'] if a != '--allowed-host=*'] == other['args']\n"
    "for key in ('image', 'ports', 'startupProbe', 'readinessProbe', 'livenessProbe', 'resources', 'volumeMounts', "
    "'securityContext'):\n"
    "    assert serve[key] == other[key], key\n"
    "ranks = load('leaderworkerset-ranks.yaml')['LeaderWorkerSet']['spec']['leaderWorkerTemplate']\n"
    "leader, worker = ranks['leaderTemplate']['spec'], ranks['workerTemplate']['spec']\n"
    "assert ranks['size'] == 2 and leader['containers'][0]['args'] == serve['args']\n"
    "for key in ('volumes', 'securityContext', 'initContainers'): assert leader[key] == worker[key], key\n"
    "for key in ('image', 'volumeMounts', 'resources', 'securityContext'):\n"
    "    assert leader['containers'][0][key] == worker['containers'][0][key], key\n"
    "compose = yaml.safe_load(open('deploy/compose.yaml'))['services']\n"
    "assert set(compose) == set(compose['leader']['environment']['FORERUN_HOSTS'].split(','))\n"
    "assert compose['leader']['entrypoint'] == leader['containers'][0]['command']\n"
    "assert compose['worker']['entrypoint'] == worker['containers'][0]['command']\n"
    "assert pool['spec']['targetPorts'] == [{'number': serve['ports'][0]['containerPort']}]\n"
    "picker = yaml.safe_load(config['data']['endpoint-picker.yaml'])\n"
    "assert picker['kind'] == 'EndpointPickerConfig'\n"
    "plugins = {p.get('name', p['type']): p.get('parameters', {}) for p in picker['plugins']}\n"
    "for profile in picker['schedulingProfiles']:\n"
    "    for p in profile['plugins']: assert p['pluginRef'] in plugins, p\n"
    "for source in picker['data']['sources']:\n"
    "    assert source['pluginRef'] in plugins and source['extractors'][0]['pluginRef'] in plugins\n"
    "engines = plugins['core-metrics-extractor']\n"
    "assert engines['defaultEngine'] in [e['name'] for e in engines['engineConfigs']]\n"
    "metrics = open(sys.argv[2]).read()\n"
    "for e in engines['engineConfigs']:\n"
    "    for key, name in e.items():\n"
    "        assert key == 'name' or re.search('(?m)^' + name + '[{ ]', metrics), name\n"
    "assert re.search(r'(?m)^forerun_cache_config_info\\{[^}]*block_size=', metrics)\n";

static void the_gateway_files_name_metrics_that_exist(void **state) {
    (void)state;
    ServeRig s;
    char metrics[700];
    serve_start(&s, "-t 1 --draft none");
    Answer a = serve_get(&s, "/metrics");
    snprintf(metrics, sizeof metrics, "%s/metrics.txt", serve_rig_folder());
    FILE *f = fopen(metrics, "w");
    fputs(a.body, f);
    fclose(f);
    answer_free(&a);
    assert_int_equal(serve_stop(&s), 0);
    run_python(check_gateway, "check_gateway", metrics);
}

/* ---- the routers of SGLang and vLLM ------------------------------------------------------------------------------ */

static const char check_routers[] =
    "import yaml, re, subprocess, sys\n"
    "services = yaml.safe_load(open('deploy/routers.yaml'))['services']\n"
    "replicas = {n: s for n, s in services.items() if n.startswith('replica')}\n"
    "assert len(replicas) == 2\n"
    "help = subprocess.run([sys.argv[1], 'serve', '--help-all'], capture_output=True, text=True).stdout\n"
    "for s in replicas.values():\n"
    "    assert s['command'][0] == 'serve'\n"
    "    for a in s['command'][1:]:\n"
    "        assert re.search(r'(?<![\\w-])' + a.split('=')[0] + r'(?![\\w-])', help), a\n"
    "    options = dict(a[2:].split('=', 1) for a in s['command'][1:])\n"
    "urls = ['http://%s:%s' % (n, options['port']) for n in sorted(replicas)]\n"
    "sglang, vllm = services['sglang'], services['vllm']\n"
    "assert sglang['command'][:3] == ['--worker-urls'] + urls\n"
    "args = dict(a[2:].split('=', 1) for a in vllm['command'])\n"
    "assert args['static-backends'].split(',') == urls\n"
    "assert args['static-models'].split(',') == [options['model'].split('=')[0]] * 2\n"
    "for router in (sglang, vllm):\n"
    "    assert set(router['depends_on']) == set(replicas) and router['ports'] == ['8080:8080']\n"
    "    assert '--port=8080' in router['command'] and '--host=0.0.0.0' in router['command']\n";

/* The file names services and options that exist, and the server answers what these routers read. */
static void routers_find_what_they_read(void **state) {
    (void)state;
    static const char *const metrics[] = {"vllm:num_requests_running{", "vllm:num_requests_waiting{",
                                          "vllm:prefix_cache_hits_total{", "vllm:prefix_cache_queries_total{",
                                          "vllm:kv_cache_usage_perc{"};
    ServeRig s;
    run_python(check_routers, "check_routers", "");
    serve_start(&s, "-t 1 --draft none --allowed-host=* --metrics-names=both -m model=" SERVE_MODEL);
    Answer health = serve_request(&s, "GET", "/health", "", NULL), a = serve_get(&s, "/metrics");
    assert_int_equal(health.status, 200);
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        if (!strstr(a.body, metrics[i])) fail_msg("/metrics has no %s", metrics[i]);
    answer_free(&health), answer_free(&a);
    static const char *const paths[] = {"/server_info", "/get_model_info"};
    for (int i = 0; i < 2; i++) {
        a = serve_get(&s, paths[i]);
        json_t *info = json_loads(a.body, 0, NULL);
        assert_string_equal(json_text_at(info, "served_model_name"), "model");
        assert_string_equal(json_text_at(info, "model_path"), SERVE_MODEL);
        assert_true(json_is_true(json_at(info, "is_generation")));
        json_decref(info);
        answer_free(&a);
    }
    a = serve_get(&s, "/v1/models");
    json_t *models = json_loads(a.body, 0, NULL);
    assert_string_equal(json_text_at(models, "data.0.id"), "model");
    json_decref(models);
    answer_free(&a);
    assert_int_equal(serve_stop(&s), 0);
}

/* ---- Grafana ------------------------------------------------------------------------------------------------ */

/* Checks that /metrics has each name that occurs in an expression. */
static int check_names(const char *expr, const char *metrics) {
    int n = 0;
    for (const char *at = expr; (at = strstr(at, "forerun_")); n++) {
        char wanted[160];
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");
        snprintf(wanted, sizeof wanted, "\n%.*s", (int)length, at);
        const char *line = strstr(metrics, wanted);
        while (line && line[1 + length] != '{' && line[1 + length] != ' ') line = strstr(line + 1, wanted);
        if (!line) fail_msg("/metrics has no %s, which the dashboard shows: %s", wanted + 1, expr);
        at += length;
    }
    return n;
}

/* Writes the expressions, with the dashboard's variables replaced, as rules for promtool. */
static void write_rule(FILE *f, int i, const char *expr) {
    static const struct {
        const char *name, *value;
    } variables[] = {{"$__rate_interval", "5m"}, {"$instance", ".*"}, {"$model", ".*"}};
    fprintf(f, "      - record: r%d\n        expr: '", i);
    for (const char *c = expr; *c;) {
        size_t k = 0;
        while (k < 3 && strncmp(c, variables[k].name, strlen(variables[k].name)) != 0) k++;
        if (k < 3) fputs(variables[k].value, f), c += strlen(variables[k].name);
        else fputc(*c++, f);
    }
    fputs("'\n", f);
}

static void the_dashboard_shows_metrics_that_exist(void **state) {
    (void)state;
    ServeRig s;
    char path[700], command[1024], *text = read_file("deploy/grafana.json");
    json_error_t why;
    json_t *dashboard = json_loads(text, JSON_REJECT_DUPLICATES, &why), *panel, *target;
    if (!dashboard) fail_msg("deploy/grafana.json: line %d: %s", why.line, why.text);
    serve_start(&s, "-t 1 --draft none");
    json_decref(serve_json(&s, "/v1/completions", 200, "{\"prompt\": \"Once\", \"max_tokens\": 2}"));
    Answer metrics = serve_get(&s, "/metrics");
    snprintf(path, sizeof path, "%s/grafana-rules.yml", serve_rig_folder());
    FILE *rules = fopen(path, "w");
    fputs("groups:\n  - name: dashboard\n    rules:\n", rules);
    size_t i, k;
    int n_names = 0, n_exprs = 0;
    json_array_foreach(json_object_get(dashboard, "panels"), i, panel) {
        assert_true(json_array_size(json_object_get(panel, "targets")) > 0);
        json_array_foreach(json_object_get(panel, "targets"), k, target) {
            const char *expr = json_text_at(target, "expr");
            n_names += check_names(expr, metrics.body);
            write_rule(rules, n_exprs++, expr);
        }
    }
    json_array_foreach(json_object_get(json_object_get(dashboard, "templating"), "list"), i, panel) {
        const char *query = json_string_value(json_at(panel, "query.query"));
        if (query) check_names(query, metrics.body);
    }
    fclose(rules);
    assert_true(n_names >= 20);
    answer_free(&metrics);
    json_decref(dashboard);
    free(text);
    assert_int_equal(serve_stop(&s), 0);
    need("command -v promtool >/dev/null 2>&1", "promtool for the expressions; the names were checked");
    snprintf(command, sizeof command, "promtool check rules %s >/dev/null", path);
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_unit_is_valid_and_confined),
        cmocka_unit_test(the_default_options_are_understood),
        cmocka_unit_test(the_kubernetes_files_fit_the_program),
        cmocka_unit_test(the_gateway_files_name_metrics_that_exist),
        cmocka_unit_test(routers_find_what_they_read),
        cmocka_unit_test(the_dashboard_shows_metrics_that_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
