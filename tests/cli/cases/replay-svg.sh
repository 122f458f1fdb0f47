"$P" replay --capacity=2 --svg=step.svg "$(dirname "$0")/../../data/trace_padded.tsv" >table
head -c 4 step.svg
tail -n 1 step.svg
for class in home tail temporary page; do
  echo "$class $(grep -c "<rect class=\"$class\" x=\"[^\"]*\" y=\"[^\"]*\" width=\"[^\"]*\" height=\"[^\"]*\" fill" step.svg)"
done
