# `make` alone prints this help.
.DEFAULT_GOAL := help
.PHONY: help run install check test torture sequences crashes mutants check-metrics check-clients check-api openapi \
	lint-openapi docs bench bench-short

help: ## What can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build and serve on http://127.0.0.1:8080, with the data in ./data
	@scripts/ensure-postgres
	cargo run --locked --profile quick -- serve --listen 127.0.0.1:8080 --data-dir ./data

install: ## Install the program where Cargo's programs are, such as ~/.cargo/bin
	cargo install --locked --path . --profile quick --target-dir target

check: ## Format, lints, house rules, library tests: no database, under a minute once built
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo test --locked --lib
	cargo test --locked --test it -- house::tidy house::circles

test: ## Run all tests; they start a PostgreSQL of their own: make test [ARGS="filter ..."]
	@scripts/ensure-postgres
	@scripts/ensure-pgbouncer
	@scripts/ensure-python3
	@scripts/ensure-node examples typescript
	@scripts/ensure-go
	cargo test --locked $(if $(ARGS),-- $(ARGS))

torture: ## Prove exactly-once for longer: make torture [SEED=n] [ROUNDS=n]
	@scripts/ensure-postgres
	ONCELOG_TEST_SEED=$(SEED) ONCELOG_TEST_ROUNDS=$(ROUNDS) \
		cargo test --locked --test it -- --ignored --nocapture long_history

sequences: ## Hold random requests against a model for longer: make sequences [SEED=n] [ROUNDS=n|SECONDS=n]
	@scripts/ensure-postgres
	ONCELOG_TEST_SEED=$(SEED) ONCELOG_TEST_ROUNDS=$(ROUNDS) ONCELOG_TEST_SECONDS=$(SECONDS) \
		cargo test --locked --test it -- --ignored --nocapture many_sequences

crashes: ## Crash PostgreSQL behind PgBouncer and lose nothing: make crashes [ROUNDS=n]
	@scripts/ensure-postgres
	@scripts/ensure-pgbouncer
	ONCELOG_TEST_ROUNDS=$(ROUNDS) \
		cargo test --locked --test it -- --ignored --nocapture outlives_many_crashes

mutants: ## Leave rules of appends and transactions out, one by one, and see a test fail
	@scripts/ensure-postgres
	@scripts/ensure-python3
	scripts/mutants

check-metrics: ## Show /metrics to promtool and a real Prometheus, and ask that what it saw
	@scripts/ensure-postgres
	@scripts/ensure-prometheus
	cargo test --locked --test it -- --ignored --nocapture metrics::tools

# The server is built as for the tests: a build alone has dependencies with other features, and
# would compile them once more.
check-clients: ## Generate clients in six languages, compile and run them: make check-clients [CLIENT=word]
	@scripts/ensure-postgres
	@scripts/ensure-clients
	cargo test --locked --test it --no-run
	scripts/check-clients $(CLIENT)

check-api: ## Send what schemathesis makes up from the OpenAPI document: make check-api [SEED=n]
	@scripts/ensure-postgres
	@scripts/ensure-clients
	cargo test --locked --test it --no-run
	scripts/check-api $(SEED)

openapi: ## Write the OpenAPI document from the code: openapi/openapi.json
	ONCELOG_TEST_WRITE_OPENAPI=1 cargo test --locked --test it -- openapi::the_committed

docs: ## Write the tables of docs/configuration.md, settings.md and metrics.md from the code
	ONCELOG_TEST_WRITE_DOCS=1 cargo test --locked --test it -- docs::the_table metrics::document::the_committed

lint-openapi: ## Lint the OpenAPI document; needs Node.js, which it installs on Debian and Ubuntu
	@scripts/lint-openapi

bench: ## Measure beside pgbench, in some 20 minutes: make bench [ROWS=name,...] [REPETITIONS=n] [DATA_DIR=dir]
	@scripts/ensure-postgres
	cargo bench --locked --bench figures -- --rows "$(ROWS)" \
		$(if $(REPETITIONS),--repetitions $(REPETITIONS)) $(if $(DATA_DIR),--data-dir $(DATA_DIR))

bench-short: ## See that `make bench` works, in a minute; its figures mean nothing
	@scripts/ensure-postgres
	cargo bench --locked --profile dev --bench figures -- --short --rows "$(ROWS)"
