# The guest: the first process of a container, which starts and ends everything in it. Run by the image's bash.
# $1 directory of FIFOs, $2 lifetime in seconds or 0, $3 working directory
#
# Lines on "control" (descriptor 200): `s ID` starts what the file "r-ID" says, `k ID PID SIGNAL SINCE ITSELF` signals,
# `c ID` ends a program of which nobody has heard yet.
# On "life" (201) it says once what it found; when that closes, the container has ended. A program reports on "s-ID".
# The end of "control" is the end of its owner, however that came: the guest leaves, and the kernel ends the rest.

dir=$1
exec 200<"$dir/control" 201>"$dir/life" 203<>"$dir/answers" || exit 1
exec </dev/null >/dev/null 2>&1
trap '' HUP INT QUIT USR1 USR2 TERM
set -m  # else what is forked in the background ignores SIGINT for good

fail() { printf '\0fail %s\0ready\n' "$1" >&201; exit 1; }
[[ -d $3 ]] || mkdir -p -- "$3" || fail "the working directory $3 cannot be made"
[[ -r /proc/self/stat ]] || fail "/proc is not mounted"
keep=
for place in /dev/shm /tmp /var/tmp "$3"; do
  if [[ -d $place && -w $place ]]; then keep=$place; break; fi
done
# The image's own environment is what it gave this process.
while IFS= read -r -d '' pair; do
  printf '%s\0' "$pair" >&201
  export -n "${pair%%=*}"  # programs get what they are given, no more
done </proc/self/environ
export -n PWD OLDPWD SHLVL
printf '\0keep %s\0ready\n' "$keep" >&201

shopt -s nullglob
declare -A jobs ids  # what we forked ourselves, with its start time: all other children of ours are orphans

started() {  # pid: sets `start` and `above`; fails for one that is gone or a zombie
  local text
  { read -r -d '' text <"/proc/$1/stat"; } 2>/dev/null  # all of it: the name of a program may hold a newline
  [[ -n $text ]] || return 1
  text=${text##*) }
  local IFS=' '
  local -a fields=($text)
  [[ ${fields[0]} != [ZX] ]] || return 1
  above=${fields[1]} start=${fields[19]}
}

note() {  # pid: it is one of ours
  if (( ${#jobs[@]} > 64 )); then
    local pid id
    for pid in "${!jobs[@]}"; do started "$pid" && [[ $start == "${jobs[$pid]}" ]] || unset "jobs[$pid]"; done
    for id in "${!ids[@]}"; do [[ -n ${jobs[${ids[$id]}]-} ]] || unset "ids[$id]"; done
  fi
  started "$1" && jobs[$1]=$start
}

reach() {  # pid since itself: sets `found`
  local entry pid
  local -A parent=() began=() below=()
  for entry in /proc/[0-9]*; do
    pid=${entry#/proc/}
    if started "$pid"; then parent[$pid]=$above began[$pid]=$start; fi
  done
  found=()
  local -a todo=()
  for pid in "${!parent[@]}"; do
    if (( began[$pid] < $2 )); then continue; fi
    if [[ ${parent[$pid]} == "$1" ]]; then
      todo+=("$pid")
    elif (( $2 >= 0 )) && [[ ${parent[$pid]} == 1 || ${parent[$pid]} == "$$" ]]; then
      [[ $pid == 1 || $pid == "$$" || ${jobs[$pid]-} == "${began[$pid]}" ]] || todo+=("$pid")
    fi
  done
  while (( ${#todo[@]} )); do
    local -a next=()
    for pid in "${todo[@]}"; do
      [[ -z ${below[$pid]-} && $pid != "$1" ]] || continue
      below[$pid]=1 found+=("$pid")
    done
    for pid in "${!parent[@]}"; do
      [[ -n ${below[${parent[$pid]}]-} && -z ${below[$pid]-} ]] && next+=("$pid")
    done
    todo=("${next[@]}")
  done
  if (( $3 )) && [[ -n ${parent[$1]-} ]]; then found+=("$1"); fi
}

signal() {  # id pid signal since itself
  local first=-1 attempt
  for (( attempt = 0; attempt < ($3 == 9 ? 30 : 1); attempt++ )); do  # until all are dead, for one may fork meanwhile
    reach "$2" "$4" "$5"
    (( first < 0 )) && first=${#found[@]}
    (( ${#found[@]} )) || break
    (( $3 == 0 )) || kill -"$3" -- "${found[@]}"
  done
  [[ -n ${jobs[$clerk]-} ]] && started "$clerk" || hire
  printf '%s %s\n' "$1" "$first" >&203
}

# Answers are written by a process of its own: a FIFO that somebody has filled must not hold the guest. It is there
# before it is needed, for where processes have used up their number none can be started.
answer() {
  local id count
  while read -r -u 203 id count; do
    [[ -p $dir/s-$id ]] && printf 'signalled %s\n' "$count" 1<>"$dir/s-$id"
  done
}
hire() { answer 200<&- 201>&- & clerk=$!; note $!; }

launch() {  # id, in a process of its own: starts the program in a process group and reports on it
  local file=$dir/r-$1
  exec 202>"$dir/s-$1" || return
  set -m
  ( trap - HUP INT QUIT USR1 USR2 TERM
    . "$file" ) &
  local pid=$!
  set +m
  wait "$pid"
  printf 'exit %s\n' $? >&202
}

begun() { printf 'pid %s\n' "$BASHPID" >&202; exec 202>&-; }  # what requests call: all is open, next comes the program
become() {  # argv
  case $1 in
    */*) [[ -e $1 ]] ;;
    *) type -P -- "$1" >/dev/null ;;
  esac || { printf '%s: No such file or directory\n' "$1" >&2; exit 127; }
  exec -- "$@"
}
failed() { printf 'error %s\n' "$*" >&202; exit 126; }
inside() {  # directories: go to the first that is one
  local place
  for place; do cd -- "$place" && return; done
  failed cwd "$place"
}

hire
while true; do
  if (( $2 )); then
    (( SECONDS < $2 )) || break
    read -r -t $(($2 - SECONDS)) -u 200 what id rest || break
  else
    read -r -u 200 what id rest || break
  fi
  case $what in
    s) launch "$id" 200<&- 201>&- 203>&- & note $! && ids[$id]=$! ;;
    k) signal "$id" $rest ;;
    c) [[ -z ${ids[$id]-} ]] || signal "$id" "${ids[$id]}" 9 -1 1 ;;
  esac
done
exit 0
