"""Code, docs/metrics.md, the mapping of Prometheus' StatsD exporter, alerts and the dashboard speak of the same metrics."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docker" / "observability"
PAGE = (ROOT / "docs" / "metrics.md").read_text()
TYPES = {"_count": "counter", "_gauge": "gauge", "_time": "timing"}
IN_PROMETHEUS = {"counter": "counter", "gauge": "gauge", "timing": "observer"}
EVENTS = ("recovery", "parked", "halted", "quarantine", "scaling", "budget")


def read(name: str) -> Any:
    return yaml.safe_load((FILES / name).read_text())


def sent() -> dict[str, str]:
    """Metric → its type, as metrics.py sends it."""
    tree = ast.parse((ROOT / "airflow_logio" / "metrics.py").read_text())
    named: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.Assign([ast.Name(name)], ast.Constant(str(metric))):
                named[name] = metric
    found = dict.fromkeys(named.values(), "gauge")  # those of ports, which a loop sends
    for call in ast.walk(tree):
        match call:
            case ast.Call(ast.Name(sends), [ast.Name(name), *_]) if sends in TYPES and name in named:
                found[named[name]] = TYPES[sends]
    return found


def mapped() -> dict[str, dict[str, Any]]:
    """Name in Prometheus → its mapping."""
    return {one["name"]: one for one in read("statsd-mapping.yml")["mappings"]}


def series() -> set[str]:
    """All names that Prometheus may have."""
    names = set(mapped())
    observed = [name for name, one in mapped().items() if one["match_metric_type"] == "observer"]
    return names | {f"{name}_{end}" for name in observed for end in ("bucket", "count", "sum")}


def used(expression: str) -> set[str]:
    return set(re.findall(r"\blogio_\w+", expression))


def rules() -> list[dict[str, Any]]:
    return [rule for group in read("logio-rules.yml")["groups"] for rule in group["rules"]]


def test_one_module_sends_metrics() -> None:
    uses = re.compile(r"\bstats\(\)\.|^from .* import .*\bStats\b", re.MULTILINE)
    sending = [module.name for module in (ROOT / "airflow_logio").rglob("*.py") if uses.search(module.read_text())]
    assert sending == ["metrics.py"]


def test_the_page_lists_what_is_sent() -> None:
    rows = re.findall(r"^\| `(logio\.[\w.]+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert len(rows) > 10 and dict(rows) == sent() and len(rows) == len(dict(rows))


def test_each_metric_has_a_name_in_prometheus() -> None:
    """Airflow puts its prefix before it."""
    found = {one["match"]: one["match_metric_type"] for one in mapped().values()}
    assert found == {f"airflow.{name}": IN_PROMETHEUS[kind] for name, kind in sent().items()}
    for name, one in mapped().items():
        ends = {"counter": "_total", "observer": "_seconds"}.get(one["match_metric_type"], "")
        assert name == one["match"].removeprefix("airflow.").replace(".", "_").removesuffix(ends) + ends
        assert one["help"]
        assert (one["match_metric_type"] == "observer") == ("histogram_options" in one)


def test_alerts_ask_for_metrics_that_exist() -> None:
    found = rules()
    assert len(found) == len({rule["alert"] for rule in found}) > 8
    for rule in found:
        assert used(rule["expr"]) and used(rule["expr"]) <= series(), rule["alert"]
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("page", "warning")
        if below := re.search(r'_bucket{le="(\d+)"}', rule["expr"]):
            [name] = {one.removesuffix("_bucket") for one in used(rule["expr"]) if one.endswith("_bucket")}
            assert int(below[1]) in mapped()[name]["histogram_options"]["buckets"]


def test_each_alert_is_seen_to_fire() -> None:
    """By `promtool test rules`, which is no part of CI."""
    tests = [one for test in read("logio-rules-test.yml")["tests"] for one in test["alert_rule_test"]]
    firing = {one["alertname"] for one in tests if one["exp_alerts"]}
    assert firing == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("event", EVENTS)
def test_the_page_shows_an_alert_for_each_event(event: str) -> None:
    """`.ci/quote --check` holds that it is the rule as it is."""
    assert f"<!-- docker/observability/logio-rules.yml {event} -->\n```yaml\n- alert: Logio" in PAGE


def test_the_dashboard_shows_metrics_that_exist() -> None:
    dashboard = json.loads((FILES / "grafana" / "dashboards" / "logio.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [variable["query"] for variable in dashboard["templating"]["list"]]
    found = set().union(*map(used, asked))
    assert found <= series()
    shown = {name for name in mapped() if any(one.startswith(name) for one in found)}
    assert shown == set(mapped()), "every metric is shown"
    [source] = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]}
    assert len(places) == len(dashboard["panels"]) == len({panel["id"] for panel in dashboard["panels"]})


def test_the_containers_find_each_other() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    observing = {name: one for name, one in services.items() if one.get("profiles") == ["observability"]}
    assert set(observing) == {"statsd-exporter", "prometheus", "grafana"}
    airflow = services["airflow"]["environment"]
    assert airflow["AIRFLOW__METRICS__STATSD_HOST"] in observing
    assert airflow["AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED"] == "True", "or there are no labels"
    [job] = read("prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["statsd-exporter:9102"]}]
    mounted = [v.split(":") for one in observing.values() for v in one["volumes"] if v.startswith(".")]
    assert all((ROOT / "docker" / source).exists() for source, *_ in mounted)
    targets = {target for _, target, *_ in mounted}
    assert set(read("prometheus.yml")["rule_files"]) <= targets
    [provider] = read("grafana/provisioning/dashboards/logio.yml")["providers"]
    assert provider["options"]["path"] in targets
    assert (
        f"--statsd.mapping-config={next(t for t in targets if 'statsd' in t)}"
        in observing["statsd-exporter"]["command"]
    )
    assert all(port.startswith("127.0.0.1:") for one in observing.values() for port in one.get("ports", []))
