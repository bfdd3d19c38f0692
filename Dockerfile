# kpsplit's command line, for the demo beside the brokers of docker-compose.yml.
FROM python:3.11-slim-bookworm

WORKDIR /opt/kpsplit
COPY requirements/build.txt requirements/base.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && pip install --no-cache-dir --require-hashes -r requirements/base.txt

COPY pyproject.toml README.md LICENSE ./
COPY kpsplit kpsplit
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
 && useradd --create-home kpsplit

USER kpsplit
WORKDIR /home/kpsplit
ENTRYPOINT ["kpsplit"]
