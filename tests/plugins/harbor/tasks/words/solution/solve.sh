#!/bin/bash
printf 'apple\nfig\npear\n' > /app/words.txt
