r"""What runs inside a sandbox that can only be reached by "run this program": one bash script, sent along each time.

Standard input is a header (its length, a newline, assignments) and a payload: a frame for the shell, or the program's
own input. Standard output is what the command printed and then one answer, marked with a random word that only the
header carries. The script holds the time limit itself, so that a command ends in time however slow the way to it is.

A session lives in a directory of its own below /dev/shm or /tmp. Its shell reads a FIFO there and is the child of a
keeper that tells how it ended. Each command (a "job") has

- `o.N`: a FIFO for its output, copied by dd, which also counts; a daemon that keeps it open holds nothing up, since
  the copy ends when all that was written before the command's end has gone through;
- `b.N`: a FIFO that is the bell: the shell, the keeper or the program's parent rings it when the command has ended;
- `s.N`: a file with the shell's report, as `agentkit.sandbox.framing` has it;
- `j.N`: who runs it, for whoever must kill it; `dead.N` says that it must not begin any more.

What a command has started is its shell's (or program's) descendants and the orphans of the sandbox, as far as they are
no older than the command: the same rule as in the embedded back ends. Where the sandbox shares its process ids with
others, the orphans are only those with the session's marker in their environment. It needs bash 4.4, GNU coreutils,
/proc.
"""

NAME = "agentkit-over-exec"

SCRIPT = r"""
set -m
exec 2>/dev/null
umask 077
IFS= read -t 60 -r _ak_n || exit
eval "$(head -c "$_ak_n")"
_ak_answer() {
  printf '%s %s %s %s %s\n' "$_ak_mark" "$1" "${2:-0}" "${3:-0}" "${4:--1}"
  [ -n "$5" ] && head -c 262144 <"$5"
  printf '%s.\n' "$_ak_mark"
}
_ak_nap() {
  local _ak_got=
  if IFS= read -r -t "$1" -u 8 _ak_got; then
    _ak_rang=$_ak_part$_ak_got
    _ak_part=
  else
    _ak_part+=$_ak_got # a time limit in the middle of a line leaves the half of it here
    return 1
  fi
}
_ak_stat() {
  local _ak_line=
  IFS= read -r -d '' _ak_line <"/proc/$1/stat"
  _ak_stats=(${_ak_line##*) })
  [ "${#_ak_stats[@]}" -gt 19 ] && case ${_ak_stats[0]} in [ZX]) false ;; esac
}
_ak_stray() {
  local _ak_words=()
  mapfile -d '' -t -n 6 _ak_words <"/proc/$1/cmdline"
  [ "${_ak_words[5]}" != agentkit-over-exec ] || return
  [ -z "$_ak_marker" ] || grep -qzxF "AGENTKIT_SANDBOX=$_ak_marker" "/proc/$1/environ"
}
_ak_scan() {
  local _ak_p _ak_q _ak_up _ak_reaper=1 _ak_kept=
  local -A _ak_parent=() _ak_start=()
  _ak_found=()
  for _ak_p in /proc/[0-9]*; do
    _ak_p=${_ak_p#/proc/}
    _ak_stat "$_ak_p" || continue
    _ak_parent[$_ak_p]=${_ak_stats[1]}
    _ak_start[$_ak_p]=${_ak_stats[19]}
  done
  read -r _ak_kept <"$_ak_dir/keeper"
  [ -n "$_ak_kept" ] && _ak_reaper=${_ak_parent[$_ak_kept]:-1}
  for _ak_p in "${!_ak_parent[@]}"; do
    [ "$_ak_p" = "$_ak_root" ] && continue
    _ak_q=$_ak_p
    while :; do
      _ak_up=${_ak_parent[$_ak_q]:-0}
      case $_ak_up in
        "$_ak_root") break ;;
        $$) continue 2 ;;
        "$_ak_reaper") _ak_stray "$_ak_q" && break || continue 2 ;;
        0) continue 2 ;;
      esac
      _ak_q=$_ak_up
    done
    [ "${_ak_start[$_ak_q]}" -ge "$_ak_since" ] && _ak_found+=("$_ak_p")
  done
  [ "${#_ak_found[@]}" -gt 0 ]
}
_ak_kill_all() {
  local _ak_i
  for ((_ak_i = 0; _ak_i < 30; _ak_i++)); do
    _ak_scan || return 0
    kill -STOP "${_ak_found[@]}" # else one could still tell of the end of another
    kill -KILL "${_ak_found[@]}"
    _ak_nap 0.002
  done
}
_ak_end() {
  local _ak_signal _ak_i _ak_at
  for _ak_signal in 2 15; do
    _ak_by=$_ak_signal
    _ak_scan || return 0
    kill "-$_ak_signal" "${_ak_found[@]}"
    _ak_at=${EPOCHREALTIME/[.,]/}
    for ((_ak_i = 0; _ak_i < 20 && ${EPOCHREALTIME/[.,]/} +0 <= ${_ak_at:-0} + 200000; _ak_i++)); do
      _ak_nap 0.01
      _ak_scan || return 0
    done
  done
  _ak_by=9
}
_ak_quiet() {
  local _ak_calm=0 _ak_i _ak_key _ak_value _ak_first=
  exec 7>&-
  for ((_ak_i = 0; _ak_i < 500; _ak_i++)); do
    kill -0 "$_ak_dd" || break
    if ((_ak_i > 1)); then
      while read -r _ak_key _ak_value; do
        [ "$_ak_key" = wchar: ] || continue
        : "${_ak_first:=$_ak_value}"
        ((_ak_value - _ak_first >= 131072)) && break 2
      done <"/proc/$_ak_dd/io"
      if ! read -t 0 -u 9 && _ak_stat "$_ak_dd" && [ "${_ak_stats[0]}" = S ]; then
        ((++_ak_calm > _ak_calms)) && break
      else
        _ak_calm=0
      fi
    fi
    IFS= read -r -t 0.002 -u 8 _
  done
  if kill -0 "$_ak_dd"; then
    (cat <&9 >/dev/null 8>&- 9<&- &) >/dev/null
    exec 9<&-
    kill -INT "$_ak_dd"
  fi
  wait "$_ak_dd"
  [ -n "$_ak_cap" ] && wait "$_ak_cap"
  _ak_total=-1
  { read -r _ && read -r _ && read -r _ak_total _; } <"$_ak_dir/n.$_ak_job"
}
_ak_open() {
  local _ak_base
  for _ak_base in /dev/shm /tmp /var/tmp; do
    _ak_dir=$(mktemp -d "$_ak_base/.agentkit-XXXXXXXXXX") && mkfifo "$_ak_dir/f" && break
    _ak_dir=
  done
  [ -n "$_ak_dir" ] || { _ak_answer nowhere; exit; }
  { (umask 022; mkdir -p -- "$_ak_cwd") && cd -- "$_ak_cwd"; } || { _ak_answer cwd; exit; }
  type dd head tail mkfifo env cat mktemp tar >/dev/null || { _ak_answer tools; exit; }
  printf %s "$_ak_dir" >"$_ak_dir/where"
  _ak_answer opened 0 0 -1 "$_ak_dir/where"
}
_ak_become() {
  local _ak_pair _ak_odd=()
  [ -n "$_ak_empty" ] && exec -c -- "$@"
  for _ak_pair in "${_ak_env[@]}"; do # not by env(1): its arguments are anybody's to read
    case ${_ak_pair%%=*} in
      [!A-Za-z_]* | *[!A-Za-z0-9_]* | UID | EUID | PPID | BASHOPTS | SHELLOPTS | BASH_VERSINFO | _ak_*)
        _ak_odd+=("$_ak_pair")
        ;;
      *) export "$_ak_pair" ;;
    esac
  done
  [ "${#_ak_odd[@]}" -gt 0 ] && exec env "${_ak_odd[@]}" "$@"
  exec -- "$@"
}
_ak_keep() {
  cd -- "$_ak_cwd" || cd /
  printf '%s\n' "$BASHPID" >"$_ak_dir/keeper"
  (
    printf '%s\n' "$BASHPID" >"$_ak_dir/shell"
    umask 022
    _ak_become bash --noprofile --norc
  ) <>"$_ak_dir/i.$_ak_shell" 60>/dev/null 61>/dev/null 62<>"$_ak_dir/e.$_ak_shell"
  printf 'x %s\n' "$?" >"$_ak_dir/x.$_ak_shell"
  read -r _ak_job <"$_ak_dir/now"
  [ -p "$_ak_dir/b.$_ak_job" ] && cat "$_ak_dir/x.$_ak_shell" 1<>"$_ak_dir/b.$_ak_job"
}
_ak_begin() {
  _ak_rang=
  _ak_part=
  [ -e "$_ak_dir/dead.$_ak_job" ] && exit
  [ -p "$_ak_dir/f" ] || { _ak_answer gone; exit; }
  _ak_o=$_ak_dir/o.$_ak_job
  _ak_b=$_ak_dir/b.$_ak_job
  _ak_c=$_ak_dir/c.$_ak_job
  mkfifo "$_ak_o" "$_ak_b" "$_ak_c" && exec 7<>"$_ak_o" 8<>"$_ak_b" 9<"$_ak_o" || { _ak_answer gone; exit; }
  [ -n "$_ak_jobs" ] && _ak_nap 0.011
  _ak_cap=
  if [ -n "$_ak_head" ]; then
    {
      head -c "$_ak_head"
      if [ "$_ak_tail" = 0 ]; then cat >/dev/null; else tail -c "$_ak_tail"; fi
    } <"$_ak_c" 7>&- 8>&- 9>&- &
    _ak_cap=$!
    dd bs=65536 <"$_ak_o" >"$_ak_c" 2>"$_ak_dir/n.$_ak_job" 7>&- 8>&- 9>&- &
    _ak_dd=$!
    _ak_calms=5
  else
    dd bs=65536 <"$_ak_o" 2>"$_ak_dir/n.$_ak_job" 7>&- 8>&- 9>&- &
    _ak_dd=$!
    _ak_calms=50
  fi
  _ak_stat "$_ak_dd"
  _ak_since=${_ak_stats[19]:-0}
}
_ak_job_file() {
  printf '%s %s %s %s\n' "$$" "$_ak_root" "$_ak_since" "$1" >"$_ak_dir/j.$_ak_job"
  [ ! -e "$_ak_dir/dead.$_ak_job" ]
}
_ak_await() {
  local _ak_left=$_ak_limit
  _ak_timed=0
  if [ -n "$_ak_limit" ]; then
    _ak_nap "$_ak_limit" && return
    _ak_timed=1
    return 1
  fi
  until _ak_nap 60; do :; done
}
_ak_tidy() { rm -f -- "$_ak_o" "$_ak_b" "$_ak_c" "$_ak_dir/"[njs]".$_ak_job"; }
_ak_exec() {
  cd -- "$_ak_cwd" || { _ak_answer cwd; exit; }
  _ak_begin
  exec 3<&0
  [ -n "$_ak_stdin" ] || exec 3</dev/null
  (
    ( umask 022; _ak_become "${_ak_argv[@]}" ) <&3 >"$_ak_o" 2>&1 3<&- 7>&- 8>&- 9>&-
    printf '%s\n' "$?" 1<>"$_ak_b"
  ) >/dev/null &
  _ak_root=$!
  exec 3<&- </dev/null
  if ! _ak_job_file exec; then
    _ak_kill_all
    kill -KILL "$_ak_root"
    exit
  fi
  if ! _ak_await; then
    _ak_end
    _ak_kill_all
    [ -n "$_ak_rang" ] || _ak_nap 2
  fi
  _ak_code=${_ak_rang:-137}
  _ak_quiet
  _ak_answer ok "$_ak_code" "$_ak_timed" "$_ak_total"
  _ak_tidy
}
_ak_alive() { read -r _ak_root <"$_ak_dir/shell" && _ak_stat "$_ak_root" && [ ! -e "$_ak_dir/x.$_ak_shell" ]; }
_ak_run() {
  if [ -n "$_ak_fresh" ]; then
    [ -p "$_ak_dir/f" ] && mkfifo "$_ak_dir/i.$_ak_shell" && : >"$_ak_dir/e.$_ak_shell" || { _ak_answer gone; exit; }
    rm -f -- "$_ak_dir/shell" "$_ak_dir/now"
    (set -m; _ak_keep &) </dev/null >/dev/null
    for ((_ak_i = 0; _ak_i < 500; _ak_i++)); do
      [ -s "$_ak_dir/shell" ] && break
      read -r -t 0.01 _ <>"$_ak_dir/f"
    done
  fi
  _ak_alive || { [ -p "$_ak_dir/f" ] && _ak_answer lost || _ak_answer gone; exit; }
  _ak_begin
  printf '%s\n' "$_ak_job" >"$_ak_dir/now"
  _ak_job_file run || exit
  cat >"$_ak_dir/i.$_ak_shell" 7>&- 8>&- 9>&- &
  _ak_cat=$!
  exec </dev/null
  _ak_by=0
  _ak_died=
  if [ -z "$_ak_limit" ]; then
    _ak_timed=0
    until _ak_nap 2; do _ak_alive || break; done
  elif ! _ak_await; then
    kill -STOP "$_ak_root"
    _ak_end
    _ak_kill_all
    kill -KILL "$_ak_root"
    _ak_nap 2
    _ak_rang="x $((128 + _ak_by))"
  fi
  kill -KILL "$_ak_cat"
  _ak_quiet
  case $_ak_rang in
    s) _ak_answer ok 0 "$_ak_timed" "$_ak_total" "$_ak_dir/s.$_ak_job" ;;
    x\ *) _ak_answer died "${_ak_rang#x }" "$_ak_timed" "$_ak_total" ;;
    *) _ak_answer died 137 "$_ak_timed" "$_ak_total" ;;
  esac
  rm -f -- "$_ak_dir/now"
  _ak_tidy
}
_ak_kill() {
  : >"$_ak_dir/dead.$_ak_job"
  exec 8<>"$_ak_dir/f"
  local _ak_runner= _ak_kind=
  read -r _ak_runner _ak_root _ak_since _ak_kind <"$_ak_dir/j.$_ak_job"
  if [ -n "$_ak_kind" ]; then
    kill -KILL "$_ak_runner"
    [ "$_ak_kind" = run ] && kill -STOP "$_ak_root"
    _ak_kill_all
    kill -KILL "$_ak_root"
    _ak_kill_all
    rm -f -- "$_ak_dir/"[obcnjs]".$_ak_job"
  fi
  _ak_answer killed
}
_ak_close() {
  cd /
  exec 8<>"$_ak_dir/f"
  _ak_since=0
  read -r _ak_root <"$_ak_dir/shell"
  read -r _ak_kept <"$_ak_dir/keeper"
  [ -n "$_ak_root" ] && _ak_kill_all && kill -KILL "$_ak_kept" "$_ak_root"
  [ -p "$_ak_dir/f" ] && rm -rf -- "$_ak_dir"
  _ak_answer closed
}
"_ak_$_ak_op"
"""
"""Takes its header and payload from standard input; see the top of this file."""
