"""A model's files: all of them count, none from elsewhere, and none that MLflow does not load."""

import hashlib
import os
from types import SimpleNamespace

import mlflow
import pytest
from gate_examples import register
from mlflow import MlflowClient

from mlflow_b3 import EvidenceError
from mlflow_b3.refit.loading import (
    MOST_COPIES,
    digest_model,
    digest_of,
    read_artifact,
    resolve_source,
    safe_path,
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def folder(tmp_path):
    """Return a model with files in folders within folders."""
    root = tmp_path / "store" / "model"
    (root / "code" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "MLmodel").write_text("flavors: {}")
    (root / "code" / "a.py").write_text("a = 1")
    (root / "code" / "deep" / "ü b.bin").write_text("")
    return root


# --- digests --------------------------------------------------------------------------------------


def test_every_file_is_digested_by_its_path(folder):
    assert digest_model(folder.as_uri()) == {
        "MLmodel": sha("flavors: {}"),
        "code/a.py": sha("a = 1"),
        "code/deep/ü b.bin": sha(""),
    }


def test_a_large_file_is_digested_in_parts(folder):
    (folder / "weights").write_bytes(b"x" * 3_000_000)
    assert digest_model(folder.as_uri())["weights"] == sha("x" * 3_000_000)


def test_one_digest_stands_for_paths_and_contents():
    files = {"a": sha("1"), "b": sha("2")}
    assert digest_of(files) == digest_of(dict(reversed(files.items())))
    others = [
        {"a": sha("1")},
        {"a": sha("2"), "b": sha("1")},
        {"a": sha("1"), "c": sha("2")},
        {f"a\n{sha('2')}  b": sha("1")},  # a name that looks like two lines of a list
        {**files, "c": sha("")},
    ]
    assert len({digest_of(each) for each in (files, *others)}) == 6


@pytest.mark.parametrize("kind", ["empty", "missing"])
def test_a_model_without_files_is_none(tmp_path, kind):
    if kind == "empty":
        (tmp_path / "empty" / "folder").mkdir(parents=True)
    with pytest.raises(EvidenceError, match="no files"):
        digest_model((tmp_path / kind).as_uri())


def test_a_file_that_is_added_anywhere_is_noticed(folder):
    before = digest_model(folder.as_uri())
    (folder / "code" / "deep" / "sitecustomize.py").write_text("")
    added = digest_model(folder.as_uri()).keys() - before.keys()
    assert added == {"code/deep/sitecustomize.py"}


def test_the_mark_that_mlflow_leaves_when_a_version_is_loaded_is_not_part_of_a_model(folder):
    before = digest_model(folder.as_uri())
    mark = folder / "registered_model_meta"
    mark.write_text("model_name: clinic\nmodel_version: '1'\n")
    assert digest_model(folder.as_uri()) == before


@pytest.mark.parametrize(
    "content",
    [
        "model_name: clinic\nmodel_version: '1'\nmore: 1",
        "model_name: clinic",
        "just text",
        "a: [",
        "# " + "x" * 5000 + "\nmodel_name: a\nmodel_version: 1",
        "\x00",
    ],
)
def test_anything_else_under_the_name_of_that_mark_is(folder, content):
    (folder / "registered_model_meta").write_text(content)
    assert "registered_model_meta" in digest_model(folder.as_uri())


def test_the_name_of_that_mark_is_nothing_special_in_a_folder(folder):
    (folder / "code" / "registered_model_meta").write_text("model_name: a\nmodel_version: 1")
    assert "code/registered_model_meta" in digest_model(folder.as_uri())


def test_the_mark_is_left_by_mlflow_itself_in_a_local_store(fresh):
    """If it no longer is, the exception for it can go."""
    mlflow.pyfunc.load_model(fresh.uri)
    assert (fresh.files / "registered_model_meta").is_file()
    assert digest_of(digest_model(fresh.files.as_uri())) == fresh.report.settings.model_digest


# --- names and links ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a\\..\\b",
        "a\0b",
        "",
        ".",
        "./a",
        "a/.",
        "..",
        "C:/x",
        "s3://b",
    ],
)
def test_names_that_lead_elsewhere_are_refused(path):
    with pytest.raises(EvidenceError, match="leaves its folder"):
        safe_path(path)


@pytest.mark.parametrize("path", ["a", "a/b.c", "..a", "a..b/c", "ü b"])
def test_names_that_only_look_odd_are_not(path):
    assert safe_path(path) == path


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "b3/../../secret", "b3\\evidence.json"]
)
def test_no_file_outside_of_a_run_is_read(folder, path):
    (folder.parent / "secret").write_text("secret")
    with pytest.raises(EvidenceError):
        read_artifact(folder.as_uri(), path, 100)


def test_a_link_out_of_the_store_is_refused(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.pkl").write_text("harmless, today")
    (folder / "linked").symlink_to(outside)
    with pytest.raises(EvidenceError, match="outside the artifact directory"):
        digest_model(folder.as_uri())
    (folder / "linked").unlink()
    (folder / "linked").symlink_to(outside / "model.pkl")
    with pytest.raises(EvidenceError, match="link out of its store"):
        digest_model(folder.as_uri())
    with pytest.raises(EvidenceError, match="link out of its store"):
        read_artifact(folder.as_uri(), "linked", 100)


def test_a_link_round_in_a_circle_is_refused(folder):
    (folder / "code" / "again").symlink_to(folder / "code")
    with pytest.raises(EvidenceError, match="cannot be listed"):
        digest_model(folder.as_uri())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are POSIX")
def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises(EvidenceError, match="not a file"):
        digest_model(folder.as_uri())


def listing(*paths, is_dir=False):
    """Return a repository that claims to hold some files, as a foreign server might."""
    entries = [SimpleNamespace(path=path, is_dir=is_dir, file_size=1) for path in paths]
    return lambda _: (SimpleNamespace(list_artifacts=lambda _: entries), "")


@pytest.mark.parametrize("path", ["../x", "/x", "a\\b", "a\0"])
def test_a_server_that_lists_such_names_is_not_believed(path):
    with pytest.raises(EvidenceError, match="leaves its folder"):
        digest_model("mlflow-artifacts:/x", listing(path))


def test_a_server_that_lists_a_folder_in_itself_is_not_followed_for_ever():
    def opener(_):
        def entries(folder):
            path = f"{folder}/a" if folder else "a"
            return [SimpleNamespace(path=path, is_dir=True, file_size=None)]

        return SimpleNamespace(list_artifacts=entries), ""

    with pytest.raises(EvidenceError, match="longer than"):
        digest_model("mlflow-artifacts:/x", opener)


def test_a_server_that_lists_files_without_end_is_not_listened_to():
    many = (f"folder {number}" for number in range(30_000))
    with pytest.raises(EvidenceError, match="more than 20000 files"):
        digest_model("mlflow-artifacts:/x", listing(*many, is_dir=True))


def test_files_of_another_folder_are_not_part_of_it():
    entries = [SimpleNamespace(path="other/a", is_dir=False, file_size=1)]
    repository = SimpleNamespace(list_artifacts=lambda _: entries)
    with pytest.raises(EvidenceError, match="not in its folder"):
        digest_model("mlflow-artifacts:/x", lambda _: (repository, "model"))


# --- single files ---------------------------------------------------------------------------------


def test_a_file_is_read_if_it_is_not_too_large(folder):
    assert read_artifact(folder.as_uri(), "code/a.py", 5) == b"a = 1"
    with pytest.raises(EvidenceError, match="larger than 4 bytes"):
        read_artifact(folder.as_uri(), "code/a.py", 4)


def test_a_file_that_is_larger_than_its_listing_says_is_not_read(folder):
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    repository = LocalArtifactRepository(folder.as_uri())
    repository.list_artifacts = lambda _: [
        SimpleNamespace(path="code/a.py", is_dir=False, file_size=1)
    ]
    with pytest.raises(EvidenceError, match="larger than 4 bytes"):
        read_artifact("file:/x", "code/a.py", 4, lambda _: (repository, ""))


@pytest.mark.parametrize("path", ["missing", "code", "code/missing", "MLmodel/x"])
def test_what_is_no_file_is_not_read(folder, path):
    with pytest.raises(EvidenceError, match="no file"):
        read_artifact(folder.as_uri(), path, 100)


# --- where a version's files are ------------------------------------------------------------------


def test_a_version_leads_to_its_logged_model(fresh):
    for uri in (fresh.uri, f"models:/{fresh.model_id}", f"runs:/{fresh.run_id}/model"):
        source = resolve_source(fresh.client, uri)
        assert (source.model_id, source.run_id) == (fresh.model_id, fresh.run_id)
        assert source.location.endswith(str(fresh.files))


def test_a_copy_of_a_copy_leads_to_the_same_model(fresh):
    fresh.client.copy_model_version(fresh.uri, "copies")
    copy = fresh.client.copy_model_version("models:/copies/1", "copied_again")
    source = resolve_source(fresh.client, f"models:/copied_again/{copy.version}")
    assert (source.model_id, source.run_id) == (fresh.model_id, fresh.run_id)


def test_a_copy_is_what_mlflow_loads_not_what_its_source_has_become(fresh, saved, complete):
    """A version that was copied can be deleted, and its name be given to another model."""
    client, name = fresh.client, "short_lived"
    first = register(saved, complete, name)
    client.copy_model_version(first.uri, "kept")
    client.delete_registered_model(name)
    other = register(saved, complete, name)
    source = resolve_source(client, "models:/kept/1")
    assert source.model_id == other.model_id
    assert source.location.endswith(str(first.files)), "so that its evidence will not fit"


def test_versions_that_are_copies_of_each_other_lead_nowhere():
    versions = SimpleNamespace(
        get_model_version=lambda name, _: SimpleNamespace(
            source=f"models:/{'b' if name == 'a' else 'a'}/1", run_id=None
        ),
        get_model_version_download_uri=lambda *_: "file:///x",
    )
    with pytest.raises(EvidenceError, match=f"more than {MOST_COPIES} times"):
        resolve_source(versions, "models:/a/1")


@pytest.fixture
def of_mlflow_2(shared_store, saved):
    """Return a model in the artifacts of a run, as MLflow 2 logged it."""
    assert shared_store
    with mlflow.start_run() as run:
        mlflow.log_artifacts(str(saved), "old")
    return SimpleNamespace(run_id=run.info.run_id, uri=f"runs:/{run.info.run_id}/old", saved=saved)


def test_a_model_of_mlflow_2_is_found_in_its_run(of_mlflow_2):
    client = MlflowClient()
    digests = digest_model(of_mlflow_2.saved.as_uri())
    client.create_registered_model(of_mlflow_2.run_id)
    by_uri = client.create_model_version(of_mlflow_2.run_id, of_mlflow_2.uri, of_mlflow_2.run_id)
    by_path = mlflow.register_model(of_mlflow_2.uri, of_mlflow_2.run_id)
    for uri in (of_mlflow_2.uri, *(f"models:/{v.name}/{v.version}" for v in (by_uri, by_path))):
        source = resolve_source(client, uri)
        assert (source.model_id, source.run_id) == (None, of_mlflow_2.run_id)
        assert digest_model(source.location) == digests


@pytest.mark.parametrize("path", ["../../secret", "", "a/../../b"])
def test_a_version_cannot_name_files_outside_of_its_run(of_mlflow_2, path):
    with pytest.raises(EvidenceError, match="leaves its folder"):
        resolve_source(MlflowClient(), f"runs:/{of_mlflow_2.run_id}/{path}")


def test_a_version_that_mixes_a_logged_model_with_files_of_its_run_is_refused(fresh):
    """MLflow would load both as one."""
    client = fresh.client
    client.create_registered_model("mixed")
    client.create_model_version("mixed", f"runs:/{fresh.run_id}/model", fresh.run_id)
    with pytest.raises(EvidenceError, match=f"register 'models:/{fresh.model_id}' instead"):
        resolve_source(client, "models:/mixed/1")
