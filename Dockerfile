# kpsplit's command line with all that the demo and `kpsplit verify` need: PySpark, a Java runtime, Spark's Kafka connector.
FROM python:3.11-slim-bookworm AS build

WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 KPSPLIT_CACHE=/opt/cache
COPY requirements/build.txt requirements/demo.txt requirements/
# The tools stay in this stage; what they build goes into an environment that has none, not even pip.
RUN python -m venv tools && python -m venv --without-pip /opt/kpsplit \
 && tools/bin/pip install --require-hashes -r requirements/build.txt \
 && tools/bin/pip wheel --require-hashes --no-build-isolation -r requirements/demo.txt -w wheels \
 && tools/bin/pip --python /opt/kpsplit/bin/python install --no-index --no-deps wheels/*.whl \
 && rm -r wheels

COPY pyproject.toml README.md LICENSE ./
COPY kpsplit kpsplit
RUN tools/bin/pip wheel --no-deps --no-build-isolation . -w wheels \
 && tools/bin/pip --python /opt/kpsplit/bin/python install --no-index --no-deps wheels/*.whl \
 && cd / && /opt/kpsplit/bin/python -c 'from kpsplit.spark_jobs.jars import ensure_connector; ensure_connector()'

FROM python:3.11-slim-bookworm

RUN python -m pip uninstall --yes pip setuptools wheel && useradd --create-home kpsplit
COPY --from=build /opt/kpsplit /opt/kpsplit
COPY --from=build --chown=kpsplit /opt/cache /opt/cache
ENV PATH=/opt/kpsplit/bin:$PATH HOME=/home/kpsplit KPSPLIT_CACHE=/opt/cache

USER kpsplit
WORKDIR /home/kpsplit
ENTRYPOINT ["kpsplit"]
