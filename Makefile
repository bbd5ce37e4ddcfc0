# The front door. `make serve` runs Tokenring, `make test` proves it; both set up what they need on a fresh Debian 12.
#
#   make                     build/tokenringd, build/tokenring, build/ngx_http_tokenring_module.so
#   make serve               nginx + worker with the default model on http://127.0.0.1:8080
#                            (MODEL=file.gguf DRAFT=file.gguf PORT=8080 THREADS=n KV_TYPE=f16 ARGS="further worker options")
#   make test                every test; the last line counts them (STRICT=1: a skip is a failure)
#   make test-long           the same with an hour of soak, long fuzzing and valgrind, every end-to-end program whole in each
#                            forced kernel tier, and times under load: two and a half to three hours on two CPUs that have
#                            nothing else to do, 4 GiB of memory, 2 GiB in /tmp (a model of 1.1B is made there; TOKENRING_1B
#                            names one). tests/run.py --long --only STEP,... runs a part of it
#   make install DESTDIR=    module, worker, tool, configuration

BUILD ?= build
DESTDIR ?=
PREFIX ?= /usr
MODULE = $(BUILD)/ngx_http_tokenring_module.so

.PHONY: all setup worker module serve test test-long install clean
all: worker module

setup:
	@tools/setup.sh

$(BUILD)/build.ninja: | setup
	meson setup $(BUILD)

worker: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

module: setup
	@tools/build_module.sh $(BUILD)

serve: all
	@tools/serve.sh $(BUILD)

test: all
	@python3 tests/run.py --build $(BUILD)

test-long: all
	@python3 tests/run.py --build $(BUILD) --long

install: all
	install -D -m 755 $(BUILD)/tokenringd $(DESTDIR)$(PREFIX)/sbin/tokenringd
	install -D -m 755 $(BUILD)/tokenring $(DESTDIR)$(PREFIX)/bin/tokenring
	install -D -m 644 $(MODULE) $(DESTDIR)$(PREFIX)/lib/nginx/modules/ngx_http_tokenring_module.so
	install -D -m 644 conf/tokenringd.conf $(DESTDIR)/etc/tokenring/tokenringd.conf
	install -D -m 644 conf/nginx.conf $(DESTDIR)$(PREFIX)/share/doc/tokenring/examples/nginx.conf
	install -D -m 644 conf/tokenring-location.conf $(DESTDIR)/etc/nginx/snippets/tokenring.conf
	install -D -m 644 conf/tokenringd.service $(DESTDIR)/lib/systemd/system/tokenringd.service

clean:
	rm -rf $(BUILD) build-*
