"""A DAG whose callbacks are notifiers of Airflow: one message for all kinds. Quoted in docs/how-to/recover.md."""

from __future__ import annotations

# [START dag]
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG

from airflow_logio.operators.pipeline_group import LogioPipelineGroup

SUBJECT = "{{ notice.pipeline }}, group {{ notice.group }}: {{ notice.kind }}"
TEXT = """
<p>{{ notice.why | e }}</p>
<ul>
{% for name, figure in notice.figures.items() %}<li>{{ name }}: {{ figure | e }}</li>
{% endfor %}</ul>
<p>DAG run {{ notice.dag_run_id | e }}. `logio status {{ notice.run_uid[:8] }}` shows what the run does.</p>
"""
mail = SmtpNotifier(to="data-team@example.com", from_email="airflow@example.com", subject=SUBJECT, html_content=TEXT)

with DAG("told_by_mail", schedule=None, params={"transactions": ""}):
    LogioPipelineGroup(
        "pipelines.sales:sales",
        connections={"warehouse": "warehouse_db"},
        on_parked_callback=mail,
        on_quarantine_callback=mail,
        on_budget_callback=[mail],
    )
# [END dag]
