#!/bin/bash
if [ "$(cat /app/greeting.txt)" = "Hello, world!" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
