"""Only our own page, in a browser that was shown the token, may ask; and it may ask for little."""

import os
import socket

import pytest

pytest.importorskip("starlette", reason="the extra dash is not installed")

from roboloop.core.errors import ConfigError
from roboloop.dash.command import dash, host_names, in_url, listen
from roboloop.dash.detail import TAIL_BYTES
from tests.dash.kit import HOST, ORIGIN, PORT, client, make_run, run_id

API = ["/api/runs", "/api/keys", "/api/curves", "/api/diff", "/api/run/x", "/api/log/x", "/sheet/x/y", "/media/x/y"]


@pytest.mark.parametrize("path", API)
def test_nothing_is_told_without_the_token(tmp_path, path):
    assert client(tmp_path, enter=False).get(path).status_code == 401


def test_a_wrong_token_or_cookie_does_not_let_in(tmp_path):
    page = client(tmp_path, enter=False)
    assert page.get("/enter", headers={"x-roboloop-token": "wrong"}).status_code == 401
    assert page.get("/enter?token=secret").status_code == 401
    page.cookies.set(f"roboloop-dash-{PORT}", "wrong")
    assert page.get("/api/runs").status_code == 401


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(tmp_path):
    answer = client(tmp_path, enter=False).get("/enter", headers={"x-roboloop-token": "secret"})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secret" not in cookie


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", ""])
def test_a_foreign_name_that_points_here_is_refused(tmp_path, host):
    page = client(tmp_path)
    for path in ("/", "/api/runs", "/enter"):
        assert page.get(path, headers={"host": host}).status_code == 421


def test_where_others_may_come_only_addresses_and_our_own_name_are_taken(tmp_path):
    ours = (HOST, f"192.168.0.7:{PORT}", f"[fe80::1]:{PORT}", f"{socket.gethostname()}:{PORT}")
    foreign = ("evil.example", f"evil.example:{PORT}", f"192.168.0.7.evil.example:{PORT}", f"*:{PORT}", "*", "")
    page = client(tmp_path, names=host_names("0.0.0.0", PORT))
    for path in ("/", "/api/runs"):
        assert [page.get(path, headers={"host": host}).status_code for host in ours] == [200] * len(ours)
        assert [page.get(path, headers={"host": host}).status_code for host in foreign] == [421] * len(foreign)
    alone = client(tmp_path, names=host_names("127.0.0.1", PORT))
    assert [alone.get("/", headers={"host": host}).status_code for host in ours] == [200, 421, 421, 421]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"https://{HOST}", "http://127.0.0.1:1"])
def test_other_origins_are_refused(tmp_path, origin):
    page = client(tmp_path)
    run = make_run(tmp_path)
    assert page.get("/api/runs", headers={"origin": origin}).status_code == 403
    assert page.post(f"/api/stop/{run_id(run)}", headers={"origin": origin}).status_code == 403


def test_a_request_that_another_site_caused_is_refused(tmp_path):
    assert client(tmp_path).get("/api/runs", headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_acting_needs_an_origin(tmp_path):
    run = make_run(tmp_path)
    assert client(tmp_path).post(f"/api/stop/{run_id(run)}").status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(tmp_path, method):
    assert client(tmp_path).request(method, "/api/runs", headers={"origin": ORIGIN}).status_code == 405


def test_only_stop_and_resume_can_be_posted_and_they_cannot_be_got(tmp_path):
    page, run = client(tmp_path), run_id(make_run(tmp_path))
    for path in ("/", "/api/runs", "/api/curves", f"/api/run/{run}"):
        assert page.post(path, headers={"origin": ORIGIN}).status_code == 405
    for verb in ("stop", "resume"):
        assert page.get(f"/api/{verb}/{run}").status_code == 405


@pytest.mark.parametrize("inner", [
    "../../../secret.png", "..%2f..%2f..%2fsecret.png", "%2e%2e/%2e%2e/%2e%2e/secret.png",
    "videos/../../../../secret.png",
    "/etc/passwd", "%2fetc%2fpasswd", "..\\secret.png", "config.yaml", "metrics.jsonl", "a%00.png", "videos",
])  # fmt: skip
def test_files_outside_of_a_run_and_files_that_are_no_pictures_are_refused(tmp_path, inner):
    (tmp_path / "secret.png").write_bytes(b"secret")
    run = make_run(tmp_path / "runs")
    (run / "videos").mkdir()
    answer = client(tmp_path / "runs").get(f"/media/{run_id(run)}/{inner}")
    assert answer.status_code == 404
    assert b"secret" not in answer.content.replace(b"secret.png", b"")


def test_a_link_that_leaves_its_run_is_not_followed(tmp_path):
    (tmp_path / "secret.png").write_bytes(b"secret")
    run = make_run(tmp_path / "runs")
    (run / "videos").mkdir()
    os.symlink(tmp_path / "secret.png", run / "videos" / "a.png")
    os.symlink(tmp_path, run / "plots")
    page = client(tmp_path / "runs")
    assert page.get(f"/media/{run_id(run)}/videos/a.png").status_code == 404
    assert page.get(f"/media/{run_id(run)}/plots/secret.png").status_code == 404
    assert page.get(f"/api/run/{run_id(run)}").json()["media"] == []


def test_a_link_that_is_called_a_picture_and_is_none_is_refused(tmp_path):
    run = make_run(tmp_path)
    (run / "videos").mkdir()
    (run / "videos" / "film.mp4").write_bytes(b"film")
    os.symlink("../config.yaml", run / "videos" / "a.png")
    os.symlink("b.png", run / "videos" / "b.png")
    os.symlink("film.mp4", run / "videos" / "latest.webm")
    page = client(tmp_path)
    for name in ("a.png", "b.png"):
        answer = page.get(f"/media/{run_id(run)}/videos/{name}")
        assert (answer.status_code, answer.json()) == (404, {"error": "no such file"})
    assert page.get(f"/media/{run_id(run)}/videos/latest.webm").headers["content-type"] == "video/webm"
    listed = {each["name"] for each in page.get(f"/api/run/{run_id(run)}").json()["media"]}
    assert listed == {"videos/film.mp4", "videos/latest.webm"}


def test_a_run_that_is_a_link_out_of_the_roots_is_not_listed(tmp_path):
    outside = make_run(tmp_path / "elsewhere")
    (tmp_path / "runs" / "sac" / "reach").mkdir(parents=True)
    os.symlink(outside, tmp_path / "runs" / "sac" / "reach" / "0")
    assert client(tmp_path / "runs").get("/api/runs").json()["runs"] == []


def test_a_log_that_links_out_of_its_run_is_not_shown(tmp_path):
    (tmp_path / "secret").write_text("secret")
    run = make_run(tmp_path / "runs")
    (run / "launch").mkdir()
    os.symlink(tmp_path / "secret", run / "launch" / "output.log")
    answer = client(tmp_path / "runs").get(f"/api/log/{run_id(run)}")
    assert "secret" not in answer.text


@pytest.mark.parametrize("name", ["config.yaml", "meta.json", "eval/a.jsonl"])
def test_settings_origin_and_evaluations_that_link_out_of_their_run_are_not_shown(tmp_path, name):
    run = make_run(tmp_path / "runs")
    secret = tmp_path / "secret"
    secret.write_text('{"hidden": "hidden"}\n{"hidden": "hidden"}\n' if name.endswith("l") else "hidden: hidden\n")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(secret)
    make_run(tmp_path / "runs", "sac/reach/1")
    page = client(tmp_path / "runs")
    ids = [row["id"] for row in page.get("/api/runs").json()["runs"]]
    for path in (f"/api/run/{run_id(run)}", f"/api/diff?runs={','.join(ids)}", f"/api/keys?runs={run_id(run)}"):
        assert "hidden" not in page.get(path).text
    assert "link out of the run" in page.get(f"/api/run/{run_id(run)}").text


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost"])
def test_the_address_that_is_printed_is_served(host):
    assert f"{in_url(host)}:8000" in host_names(host, 8000)


def test_a_host_that_is_no_name_is_one_line():
    with pytest.raises(ConfigError, match=r"cannot listen at a\.\.b"):
        listen("a..b", 0)


def test_of_a_huge_log_only_the_end_is_read(tmp_path):
    run = make_run(tmp_path)
    (run / "launch").mkdir()
    with open(run / "launch" / "output.log", "wb") as log:
        log.seek(5 << 30)  # five gigabytes that are not there
        log.write(b"\nthe last line\n")
    page = client(tmp_path)
    answer = page.get(f"/api/log/{run_id(run)}").json()
    assert len(answer["text"]) <= TAIL_BYTES
    assert answer["text"].endswith("the last line\n")
    assert len(page.get(f"/api/log/{run_id(run)}?from=0").json()["text"]) <= TAIL_BYTES


def test_answers_forbid_inline_scripts_frames_and_guessing_of_types(tmp_path):
    page, run = client(tmp_path), make_run(tmp_path, "<img src=x onerror=alert(1)>/t/0")
    for path in ("/", "/static/app.js", "/api/runs", f"/api/run/{run_id(run)}", "/nothing"):
        headers = page.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    # a name is data, of a type that no browser takes for a page
    assert page.get("/api/runs").headers["content-type"] == "application/json"


def test_listening_where_others_can_reach_it_must_be_asked_for(tmp_path):
    for host in ("0.0.0.0", "192.168.0.7", "robot.example", "::"):
        with pytest.raises(ConfigError, match="--listen-anywhere"):
            dash([str(tmp_path), "--host", host])


def test_whoever_reads_the_address_can_come_at_once():
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname(), timeout=5):
        pass
