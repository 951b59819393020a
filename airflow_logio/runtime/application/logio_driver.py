"""The Spark application that spark-submit runs for a group; it lies alone in its folder, which becomes sys.path[0]."""

from airflow_logio.runtime.driver.process import main

if __name__ == "__main__":
    main()
