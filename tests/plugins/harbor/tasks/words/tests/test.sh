#!/bin/bash
# Two rewards: the right words, and in the right order.
complete=0 ordered=0
if [ "$(sort /app/words.txt | tr '\n' ' ')" = "apple fig pear " ]; then complete=1; fi
if [ $complete = 1 ] && sort -c /app/words.txt; then ordered=1; fi
echo "{\"complete\": $complete, \"ordered\": $ordered}" > /logs/verifier/reward.json
