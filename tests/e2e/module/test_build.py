#!/usr/bin/env python3
"""What is built: source lists, symbols, and that a loaded but unused module changes nothing."""
import re, shutil, subprocess

from rig import Rig, main, module, source


def config_sources():
    """The .c files that `config` names, relative to the root."""
    return set(re.findall(r'\$ngx_addon_dir/(\S+\.c)', (source / 'config').read_text()))


def test_config_names_the_sources_that_meson_has():
    mine = config_sources()
    module_files = {str(p.relative_to(source)) for p in (source / 'ngx_module').glob('*.c')}
    assert {s for s in mine if s.startswith('ngx_module/')} == module_files
    for folder in ('core/ring',):
        text = (source / folder / 'meson.build').read_text()
        listed = {f'{folder}/{name}' for name in re.findall(r"'([a-z_]+\.c)'", text)}
        assert {s for s in mine if s.startswith(folder + '/')} == listed, folder
    text = (source / 'core/base/meson.build').read_text()
    listed = {f'core/base/{name}' for name in re.findall(r"'([a-z_]+\.c)'", text)}
    assert {s for s in mine if s.startswith('core/base/')} <= listed
    assert all((source / s).exists() for s in mine)


def test_config_names_every_header_that_the_sources_include():
    named = set(re.findall(r'\$ngx_addon_dir/(\S+)', (source / 'config').read_text()))
    for s in config_sources():
        for header in re.findall(r'#include "(core/[^"]+)"', (source / s).read_text()):
            assert header in named, f'{s} includes {header}, which config does not name'


def test_exports_are_exactly_three():
    out = subprocess.run(['nm', '-D', '--defined-only', str(module)], stdout=subprocess.PIPE, text=True, check=True).stdout
    names = sorted(line.split()[-1] for line in out.splitlines())
    assert names == ['ngx_module_names', 'ngx_module_order', 'ngx_modules'], names


def test_needs_nothing_of_the_worker():
    out = subprocess.run(['nm', '-D', '--undefined-only', str(module)], stdout=subprocess.PIPE, text=True, check=True).stdout
    wrong = [w for w in re.findall(r' U (\S+)', out) if re.match(r'(uv_|je_|mallocx|abort|exit|__assert)', w)]
    assert not wrong, wrong


def test_loaded_but_unused_changes_nothing():
    server = 'location / { return 200 "plain $request_uri\\n"; } location /file { root %(dir)s; }'
    answers = []
    for load in (False, True):
        with Rig(server, workers=0, load=load) as rig:
            (rig.dir / 'file').write_text('x' * 100000)
            got = [rig.get(p) for p in ('/a?b', '/file', '/missing/../file')]
            for status, headers, body in got:
                for name in ('date', 'last-modified', 'etag'):
                    headers.pop(name, None)
            answers.append(got)
    assert answers[0] == answers[1], answers


def test_configuration_mistakes_get_nginx_messages():
    cases = [
        ('location / { tokenring_pass unix:/a; tokenring_pass unix:/b; }', '"tokenring_pass" directive is duplicate'),
        ('location / { tokenring_pass; }', 'invalid number of arguments in "tokenring_pass" directive'),
        ('tokenring_pass unix:/a;', '"tokenring_pass" directive is not allowed here'),
        ('location / { tokenring_pass unix:; }', 'no path in the unix domain socket'),
        ('location / { tokenring_pass unix:/%s; }' % ('a' * 200), 'too long path in the unix domain socket'),
        ('location / { tokenring_pass 127.0.0.1:80; }', 'needs a "unix:" socket or the name of an upstream, not "127.0.0.1:80"'),
        ('location / { tokenring_pass nosuch; }', 'no port in upstream "nosuch"'),
        ('location / { tokenring_pass tcp; }', 'server "127.0.0.1:9" of upstream "tcp" is not a unix socket'),
        ('location ~ /x { tokenring_pass unix:/a:/v1/; }', 'cannot have URI part in location given by regular expression'),
        ('location @x { tokenring_pass unix:/a:/v1/; }', 'cannot have URI part in location given by regular expression'),
        ('location / { tokenring_pass unix:/a; tokenring_read_timeout x; }', '"tokenring_read_timeout" directive invalid value'),
        ('location / { tokenring_pass unix:/a; tokenring_buffering maybe; }', 'invalid value "maybe" in "tokenring_buffering" directive'),
        ('location / { tokenring_pass unix:/a; tokenring_next_upstream never; }', 'invalid value "never"'),
        ('location / { tokenring_pass unix:/a; tokenring_buffer_size 100; }', '"tokenring_buffer_size" directive must be at least 1k'),
        ('location / { tokenring_pass unix:/a; tokenring_buffers 1 4k; }', 'there must be at least 2 "tokenring_buffers"'),
        ('location / { tokenring_pass unix:/a; tokenring_busy_buffers_size 1m; }', '"tokenring_busy_buffers_size" must be less than'),
        ('location / { tokenring_pass unix:/a; tokenring_set_header "" x; }', '"tokenring_set_header" directive has an empty header name'),
        ('location / { tokenring_pass unix:/a; tokenring_read_timeout 1s; tokenring_read_timeout 2s; }', '"tokenring_read_timeout" directive is duplicate'),
    ]
    for server, message in cases:
        rig = Rig(server.replace('%', '%%'), http='upstream tcp { server 127.0.0.1:9; }', workers=0)
        (rig.dir / 'nginx.conf').write_text(rig.config())
        done = subprocess.run(rig.argv('-t'), stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1 and message in done.stderr, (server, done.returncode, done.stderr)
        assert '[emerg]' in done.stderr, done.stderr
        shutil.rmtree(rig.dir)


def test_everything_that_may_be_said_is_accepted():
    server = '''
        tokenring_connect_timeout 1s; tokenring_send_timeout 2s; tokenring_read_timeout 3s; tokenring_buffering on; tokenring_request_buffering off;
        tokenring_next_upstream error http_503; tokenring_next_upstream_tries 2; tokenring_next_upstream_timeout 5s; tokenring_intercept_errors on;
        tokenring_hide_header X-Worker; tokenring_pass_header Server; tokenring_ignore_headers X-Accel-Redirect; tokenring_ignore_client_abort on;
        tokenring_buffer_size 16k; tokenring_buffers 8 16k; tokenring_busy_buffers_size 32k; tokenring_set_header X-Tenant $remote_addr;
        location / { tokenring_pass pool; if ($arg_x) { tokenring_pass pool; } limit_except GET { tokenring_pass unix:/a; } }
        location /ai/ { tokenring_pass unix:/a:/v1/; tokenring_next_upstream off; }
        location /v { set $s /a; tokenring_pass unix:$s:/x; }'''
    rig = Rig(server, http='upstream pool { server unix:/a; server unix:/b backup; keepalive 4; }', workers=0)
    (rig.dir / 'nginx.conf').write_text(rig.config())
    done = subprocess.run(rig.argv('-t'), stderr=subprocess.PIPE, text=True)
    shutil.rmtree(rig.dir)
    assert done.returncode == 0, done.stderr


if __name__ == '__main__':
    main()
